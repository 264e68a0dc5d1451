"""Turns merged raw settings into `Settings`, or into one line for each thing that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from custom_models.configs import MODELS
from custom_models.kinds import UNKNOWN_KIND, Kinds
from custom_models.text import nearest, one_line
from rl_service.config.algorithms import ALGORITHMS
from rl_service.config.layers import GROUPS
from rl_service.config.presets import PAPER_MODELS
from rl_service.config.settings import Settings

KINDS: dict[str, Kinds[Any]] = {"model": MODELS, "algorithm": ALGORITHMS}
"""Groups whose keys depend on their `name`."""

Names = dict[str, str]
"""The name given for each group of `KINDS`."""

SourceOf = Callable[[str, str | None], str | None]


def validate(raw: dict[str, Any], source_of: SourceOf) -> tuple[Settings | None, list[str]]:
    """Validates merged settings.

    Args:
        raw: one mapping a group, and the seed.
        source_of: where `(group, key)` was given, for the messages.

    Returns:
        The settings (None if anything is wrong), and the problems.
    """
    try:
        return Settings.model_validate(raw), []
    except ValidationError as error:
        names = {group: str(raw.get(group, {}).get("name")) for group in KINDS}
        details = [*error.errors(), *_under_unknown_names(raw, names)]
        return None, [_problem(detail, names, source_of) for detail in details]


def _under_unknown_names(raw: dict[str, Any], names: Names) -> list[Any]:
    """Further problems in groups with an unknown name: values that the default kind refuses."""
    unknown = [group for group, name in names.items() if KINDS[group].get(name) is None]
    if not unknown:
        return []
    defaults = {group: getattr(Settings(), group).name for group in unknown}
    try:
        Settings.model_validate(
            raw | {group: raw.get(group, {}) | {"name": defaults[group]} for group in unknown}
        )
    except ValidationError as error:
        return [
            detail
            for detail in error.errors()
            if detail["loc"][0] in unknown and detail["type"] != "extra_forbidden"
        ]
    return []


def known_keys(group: str, names: Names) -> list[str]:
    """Keys of a group; those of a group of `KINDS` depend on its name."""
    if group in KINDS:
        config = KINDS[group].get(names[group])
        return list(config.model_fields) if config else []
    annotation = Settings.model_fields[group].annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return list(annotation.model_fields)
    return []


def _problem(detail: Any, names: Names, source_of: SourceOf) -> str:
    path = _path(detail["loc"])
    group, key = path[0], path[1] if len(path) > 1 else None
    source = source_of(group, key)
    where = f" (from {source})" if source else ""
    name = ".".join(path)
    if detail["type"] == "extra_forbidden":
        return f"unknown setting {name}{where}; {_key_hint(path, names)}"
    reason = one_line(detail["msg"])
    if detail["type"] == UNKNOWN_KIND:
        if ":" in names[group]:
            return f"{group}.name={names[group]}: {reason}"
        more = tuple(PAPER_MODELS) if group == "model" else ()
        return _unknown_name(group, names[group], (*KINDS[group].ours, *more))
    if detail["type"] == "value_error":  # from our own validator, which names the settings
        return f"{name}{where if key else ''}: {reason.removeprefix('Value error, ')}"
    reason = reason.replace("Input should", "must").replace("a valid integer", "an integer")
    return f"{name}={_shown(detail['input'])}{where}: {reason}"


def _path(loc: tuple[int | str, ...]) -> list[str]:
    """Names as the user writes them: without the tag of a mapping's key."""
    return [str(part) for part in loc if part != "[key]"]


def _unknown_name(kind: str, name: str, known: tuple[str, ...]) -> str:
    near = nearest(name, known)
    hint = f"did you mean {near}? " if near else ""
    return f"unknown {kind} {name}; {hint}known: {', '.join(known)}"


def _key_hint(path: list[str], names: Names) -> str:
    *folders, key = path
    group = folders[0] if folders else None
    siblings = known_keys(group, names) if group else list(Settings.model_fields)
    elsewhere = next((full for full in _all_keys(names) if full.split(".")[-1] == key), None)
    if group in KINDS and elsewhere is None:
        owners = [name for name, each in KINDS[group].ours.items() if key in each.model_fields]
        if owners:
            return (
                f"it is a setting of the {group} {' and '.join(owners)}, and this run's {group} "
                f"is {names[group]}"
            )
    near = nearest(key, siblings)
    suggestion = elsewhere or (".".join([*folders, near]) if near else None)
    if suggestion:
        return f"did you mean {suggestion}?"
    return f"known: {', '.join(siblings)}"


def _all_keys(names: Names) -> Iterator[str]:
    for group in GROUPS:
        yield from (f"{group}.{key}" for key in known_keys(group, names))


def _shown(value: Any) -> str:
    text = one_line(repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."
