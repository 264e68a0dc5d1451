"""Loads settings: defaults < preset < file < flags < `--set`; all problems reported together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from rl_service.config.aliases import PAPER_MODELS, resolve_env_id
from rl_service.config.arithmetic import check_arithmetic
from rl_service.config.layers import Layer, merge, source_of, winner
from rl_service.config.overrides import parse_overrides
from rl_service.config.presets import find_preset, preset_path, resolve_settings_file
from rl_service.config.schema import validate
from rl_service.config.settings import Settings
from rl_service.config.yaml_text import read_yaml_mapping
from rl_service.errors import SettingsError


@dataclass(frozen=True)
class LoadedSettings:
    """Settings, and what the user should know of how they came about, one line each."""

    settings: Settings
    notes: list[str]


def load_settings(
    *,
    config: Path | None = None,
    model: str | None = None,
    algorithm: str | None = None,
    env: str | None = None,
    flags: Mapping[str, Any] | None = None,
    on_top: Layer | None = None,
    overrides: Sequence[str] = (),
) -> LoadedSettings:
    """Loads the settings of a run.

    Args:
        config: a YAML file, or the name of a shipped one (`quickstart`).
        model: model name, ours or the paper's (`ppo_ex`, `ppo_gpt`).
        algorithm: algorithm name.
        env: environment id.
        flags: values of further flags by dotted key (`stop.iterations`); None means not given.
        on_top: settings that some other file has; they win over flags.
        overrides: `group.key=value` texts; they win over everything else.

    Raises:
        SettingsError: with all problems of all sources.
    """
    named = {"env.id": env, "model.name": model, "algorithm.name": algorithm}
    override_layer, problems = parse_overrides(list(overrides))
    given = [_file_layer(config), _flag_layer({**named, **(flags or {})})]
    given += [*([on_top] if on_top else []), override_layer]
    for layer in given:
        problems += layer.take_out_malformed_groups()
    names, preset, notes = _resolve_names(given)
    return LoadedSettings(checked([preset, *given, names], problems), notes)


def checked(layers: list[Layer], problems: list[str]) -> Settings:
    """The settings that layers make together, the later ones winning.

    Args:
        layers: lowest first.
        problems: found before, to be reported together with what is found here.

    Raises:
        SettingsError: with all problems, if there is any.
    """
    settings, found = validate(merge(layers), partial(source_of, layers))
    problems = problems + found
    if settings is not None:
        problems += check_arithmetic(settings)
    if settings is None or problems:
        raise SettingsError(problems)
    return settings


def dump_settings(settings: Settings) -> str:
    """Settings as YAML that `load_settings` reads back to the same settings."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False)


def _file_layer(config: Path | None) -> Layer:
    if config is None:
        return Layer("the settings file")
    content = read_yaml_mapping(resolve_settings_file(config))
    if "search_space" in content:
        raise SettingsError(
            f"{config} is a tuning file, as it has a search_space; run rl-service tune {config}"
        )
    return Layer(config.as_posix(), content)


def _flag_layer(flags: Mapping[str, Any]) -> Layer:
    layer = Layer("a flag")
    for dotted, value in flags.items():
        if value is None:
            continue
        group, _, key = dotted.partition(".")
        if key:
            layer.put(group, key, value)
        else:
            layer.values[group] = value
    return layer


def _resolve_names(given: list[Layer]) -> tuple[Layer, Layer, list[str]]:
    """Names after aliases, the preset that they lead to, and notes on both."""
    defaults = Settings()
    env_id, note = resolve_env_id(str(winner(given, "env", "id") or defaults.env.id))
    model = str(winner(given, "model", "name") or defaults.model.name)
    algorithm = str(winner(given, "algorithm", "name") or defaults.algorithm.name)
    notes = [note] if note else []
    names = Layer("the default", {"model": {"name": model}, "algorithm": {"name": algorithm}})
    if note:
        names.put("env", "id", env_id)
    alias = PAPER_MODELS.get(model)
    if alias:
        names.put("model", "name", alias)
    preset, told = _preset_layer("paper" if alias else "tuned", env_id, model, algorithm)
    notes += told
    if alias and not told:
        notes.append(f"the paper's preset {model} does not cover {env_id}; using the defaults")
    return names, preset, notes


def _preset_layer(kind: str, env_id: str, model: str, algorithm: str) -> tuple[Layer, list[str]]:
    """The preset that the names lead to, and a note on it.

    Without one for the algorithm, PPO's gives all but the algorithm's settings: what it says of
    the environment and the model holds all the same.
    """
    preset = find_preset(kind, env_id, model, algorithm)
    if preset is not None:
        content = read_yaml_mapping(preset_path(preset))
        return Layer(f"the preset {preset}", content), [f"settings start from the preset {preset}"]
    others = find_preset(kind, env_id, model)
    if others is None:
        return Layer("the preset"), []
    content = read_yaml_mapping(preset_path(others))
    content.pop("algorithm", None)
    note = f"settings start from the preset {others}, those of {algorithm} from its defaults"
    return Layer(f"the preset {others}", content), [note]
