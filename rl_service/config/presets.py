"""Finds the settings files that ship with the package, in `tune_configs`."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from custom_models.text import nearest
from rl_service.common.errors import SettingsError


def presets_folder() -> Path:
    """Folder of the shipped settings files."""
    return Path(str(files("tune_configs")))


def preset_names() -> list[str]:
    """Names of all shipped settings files, such as `paper/CartPole-v1_ppo_ex`."""
    folder = presets_folder()
    return sorted(
        path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml")
    )


def preset_path(name: str) -> Path:
    """File of a shipped preset."""
    return presets_folder() / f"{name}.yaml"


def find_preset(kind: str, env_id: str, model: str, algorithm: str = "ppo") -> str | None:
    """Name of the preset of an environment, a model and an algorithm.

    Args:
        kind: `paper` or `tuned`.
        env_id: exact gymnasium id.
        model: the paper's model name (`paper`), or that of the package (`tuned`).
        algorithm: not part of the names of PPO's presets.
    """
    suffix = "" if algorithm == "ppo" else f"_{algorithm}"
    name = f"{kind}/{env_id}_{model}{suffix}"
    return name if name in preset_names() else None


def resolve_settings_file(config: Path) -> Path:
    """The file that `--config` means: a path, or the name of a shipped preset.

    Raises:
        SettingsError: if neither exists.
    """
    if config.is_file():
        return config
    names = preset_names()
    name = config.as_posix().removesuffix(".yaml")
    if name in names:
        return preset_path(name)
    if config.is_dir():
        raise SettingsError(f"settings file {config} is a folder; give a YAML file in it")
    near = nearest(name, names)
    hint = f"did you mean the preset {near}?" if near else "give a YAML file"
    raise SettingsError(f"settings file {config} does not exist; {hint}")


PAPER_MODELS = {"ppo_ex": "mlp", "ppo_gpt": "gpt2_critic"}
"""The model for each of the paper's names; its preset is the paper's Table I."""

ENV_ALIASES = {
    "LunarLander-v2": "LunarLander-v3",
    "LunarLanderContinuous-v2": "LunarLanderContinuous-v3",
}


def resolve_env_id(env_id: str) -> tuple[str, str | None]:
    """Maps the id of an environment that gymnasium has dropped to its successor.

    Returns:
        The id to use, and a note for the user if it differs from the one given.
    """
    successor = ENV_ALIASES.get(env_id)
    if successor is None:
        return env_id, None
    return successor, f"{env_id} is no longer in gymnasium; using its successor {successor}"
