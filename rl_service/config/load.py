"""Loads settings: defaults < preset < file < flags < `--set`; all problems reported together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from custom_models.text import nearest, one_line
from rl_service.common.errors import SettingsError
from rl_service.config.arithmetic import check_arithmetic
from rl_service.config.layers import GROUPS, Layer, merge, source_of, winner
from rl_service.config.presets import (
    PAPER_MODELS,
    find_preset,
    preset_path,
    resolve_env_id,
    resolve_settings_file,
)
from rl_service.config.schema import validate
from rl_service.config.settings import Settings, StopSettings
from rl_service.config.yaml_text import parse_yaml, read_yaml_mapping

_CHANGEABLE = ("algorithm", "resources", "stop", "evaluation", "tracking")
_CHANGEABLE_TOO = ("env.max_failed_episodes",)
_FIXED = (
    "algorithm.name",
    "algorithm.optimizer",
    "algorithm.critic_optimizer",
    "tracking.output_dir",
    "tracking.experiment",
)
_EXAMPLE = "expected group.key=value, such as algorithm.gamma=0.99"


@dataclass(frozen=True)
class LoadedSettings:
    """Settings, and notes for the user on where they come from, one line each."""

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
        model: model name, also the paper's (`ppo_ex`, `ppo_gpt`).
        algorithm: algorithm name.
        env: environment id.
        flags: values of further flags by dotted key (`stop.iterations`); None means not given.
        on_top: settings from another file; they override flags.
        overrides: `group.key=value` texts; they override everything else.

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
    """Merges layers into settings; later layers override earlier ones.

    Args:
        layers: lowest first.
        problems: found earlier, reported together with those found here.

    Raises:
        SettingsError: with all problems, if there are any.
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
    """Names after resolving aliases, the preset for them, and notes on both."""
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
    """The preset for the names, and a note on it.

    Without a preset for the algorithm, PPO's gives everything except the algorithm's settings:
    those of the environment and the model still apply.
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


def change_settings(
    settings: Settings, *, iterations: int | None, overrides: Sequence[str]
) -> LoadedSettings:
    """Settings of a run that is resumed.

    Args:
        settings: of the run so far.
        iterations: its new length, which replaces every other criterion of `stop`; None keeps
            them.
        overrides: `group.key=value` texts, which override the rest.

    Returns:
        The settings, and a note for each value that changed.

    Raises:
        SettingsError: with all problems, also for keys that a run cannot change.
    """
    override_layer, problems = parse_overrides(list(overrides))
    problems += _fixed_keys(override_layer)
    length = Layer("a flag")
    if iterations is not None:
        others = dict.fromkeys(StopSettings.model_fields)
        length.values["stop"] = {**others, "iterations": iterations}
    before = Layer("the run", settings.model_dump(mode="json"))
    changed = checked([before, length, override_layer], problems)
    return LoadedSettings(changed, _notes(settings, changed))


def _fixed_keys(layer: Layer) -> list[str]:
    """One problem for each key that a run cannot change."""
    given = [
        f"{group}.{key}" if key else group
        for group, values in layer.values.items()
        for key in (values if group in GROUPS else [None])
    ]
    given += [f"env.kwargs.{key}" for key in layer.env_kwargs]
    return [
        f"--set {name}: a resumed run keeps its env, model, algorithm.name, optimizers, output "
        f"folder, experiment and seed; leave it out, or start a new run without --resume"
        for name in given
        if not _is_changeable(name)
    ]


def _is_changeable(name: str) -> bool:
    if name in _FIXED:
        return False
    return name.partition(".")[0] in _CHANGEABLE or name in _CHANGEABLE_TOO


def _notes(before: Settings, after: Settings) -> list[str]:
    old = before.by_key()
    return [
        f"{name} is {_shown(value)} from here on (was {_shown(old[name])})"
        for name, value in after.by_key().items()
        if value != old.get(name) and _is_changeable(name)
    ]


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)


def parse_overrides(overrides: list[str]) -> tuple[Layer, list[str]]:
    """Reads the texts in order; a value is YAML (`null`, `1e-4`, `[256, 256]`).

    `env.kwargs.name=value` adds one entry to the environment's arguments.

    Returns:
        The layer, and one problem for each text that cannot be read.
    """
    layer, problems = Layer("--set"), []
    for text in overrides:
        try:
            _put(layer, text)
        except ValueError as error:
            problems.append(f"--set {one_line(text)}: {error}")
    return layer, problems


def _put(layer: Layer, text: str) -> None:
    key, separator, raw = text.partition("=")
    names = key.strip().split(".")
    if not separator or not all(names):
        raise ValueError(_EXAMPLE)
    try:
        value = parse_yaml(raw)
    except yaml.YAMLError as error:
        raise ValueError("the value is not valid YAML; put quotes around text") from error
    match names:
        case ["env", "kwargs", name]:
            layer.env_kwargs[name] = value
        case [group, name] if group in GROUPS:
            layer.put(group, name, value)
        case [name] if name not in GROUPS:
            layer.values[name] = value  # the seed; the schema refuses other names
        case [group, *_] if group in GROUPS:
            raise ValueError(_EXAMPLE)
        case _:
            near = nearest(names[0], GROUPS)
            hint = f"did you mean {near}?" if near else f"groups are {', '.join(GROUPS)}"
            raise ValueError(f"unknown group {names[0]}; {hint}")
