"""What a run that goes on may change of its settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_service.config.layers import GROUPS, Layer
from rl_service.config.load import LoadedSettings, checked
from rl_service.config.overrides import parse_overrides
from rl_service.config.settings import Settings, StopSettings

_CHANGEABLE = ("algorithm", "resources", "stop", "evaluation", "tracking")


def change_settings(
    settings: Settings, *, iterations: int | None, overrides: Sequence[str]
) -> LoadedSettings:
    """Settings of a run that goes on.

    Args:
        settings: of the run so far.
        iterations: its new length, which takes the place of every other criterion of `stop`;
            None keeps them.
        overrides: `group.key=value` texts; they win.

    Returns:
        The settings, and a note for each value that is another than before.

    Raises:
        SettingsError: with all problems, also those of keys that make a run what it is.
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
    """One problem for each key that a run keeps from its start to its end."""
    given = [
        f"{group}.{key}" if key else group
        for group, values in layer.values.items()
        for key in (values if group in GROUPS else [None])
    ]
    given += [f"env.kwargs.{key}" for key in layer.env_kwargs]
    return [
        f"--set {name}: a resumed run keeps its env, model, algorithm.name, optimizers, output "
        f"folder and seed; leave it out, or start a new run without --resume"
        for name in given
        if not _is_changeable(name)
    ]


def _is_changeable(name: str) -> bool:
    if name in _FIXED:
        return False
    return name.partition(".")[0] in _CHANGEABLE or name in _CHANGEABLE_TOO


_CHANGEABLE_TOO = ("env.max_failed_episodes",)
_FIXED = (
    "algorithm.name",
    "algorithm.optimizer",
    "algorithm.critic_optimizer",
    "tracking.output_dir",
    "tracking.experiment",
)


def _notes(before: Settings, after: Settings) -> list[str]:
    old = before.by_key()
    return [
        f"{name} is {_shown(value)} from here on (was {_shown(old[name])})"
        for name, value in after.by_key().items()
        if value != old.get(name) and _is_changeable(name)
    ]


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)
