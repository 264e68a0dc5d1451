"""Turns merged raw settings into `Settings`, or into one line for each thing that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from custom_models.configs import GPT2CriticConfig, MLPConfig
from rl_service.config.aliases import ALGORITHM_NAMES, MODEL_NAMES, PAPER_MODELS
from rl_service.config.layers import GROUPS
from rl_service.config.settings import Settings
from rl_service.config.text import nearest, one_line

MODEL_CONFIGS: dict[str, type[BaseModel]] = {"gpt2_critic": GPT2CriticConfig, "mlp": MLPConfig}

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
        model = raw.get("model", {}).get("name")
        return None, [_problem(detail, str(model), source_of) for detail in error.errors()]


def known_keys(group: str, model: str) -> list[str]:
    """Keys of a group; those of `model` depend on the model's name."""
    if group == "model":
        config = MODEL_CONFIGS.get(model)
        return list(config.model_fields) if config else []
    annotation = Settings.model_fields[group].annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return list(annotation.model_fields)
    return []


def _problem(detail: Any, model: str, source_of: SourceOf) -> str:
    path = _path(detail["loc"])
    group, key = path[0], path[1] if len(path) > 1 else None
    source = source_of(group, key)
    where = f" (from {source})" if source else ""
    name = ".".join(path)
    if detail["type"] == "extra_forbidden":
        return f"unknown setting {name}{where}; {_key_hint(path, model)}"
    if detail["type"] == "union_tag_invalid":
        return _unknown_name("model", model, (*MODEL_NAMES, *PAPER_MODELS))
    if path == ["algorithm", "name"]:
        return _unknown_name("algorithm", str(detail["input"]), ALGORITHM_NAMES)
    reason = one_line(detail["msg"])
    if detail["type"] == "value_error":  # from a check of our own, which names the settings
        return f"{name}{where if key else ''}: {reason.removeprefix('Value error, ')}"
    reason = reason.replace("Input should", "must").replace("a valid integer", "an integer")
    return f"{name}={_shown(detail['input'])}{where}: {reason}"


def _path(loc: tuple[int | str, ...]) -> list[str]:
    """Names as the user writes them: without the tag that says which model's settings."""
    names = [str(part) for part in loc]
    if names[0] == "model" and len(names) > 1 and names[1] in MODEL_CONFIGS:
        del names[1]
    return names


def _unknown_name(kind: str, name: str, known: tuple[str, ...]) -> str:
    near = nearest(name, known)
    hint = f"did you mean {near}? " if near else ""
    return f"unknown {kind} {name}; {hint}known: {', '.join(known)}"


def _key_hint(path: list[str], model: str) -> str:
    *folders, key = path
    group = folders[0] if folders else None
    siblings = known_keys(group, model) if group else list(Settings.model_fields)
    elsewhere = next((full for full in _all_keys(model) if full.split(".")[-1] == key), None)
    if group == "model" and elsewhere is None:
        owner = next((m for m in MODEL_CONFIGS if key in known_keys("model", m)), None)
        if owner:
            return f"it is a setting of the model {owner}, and this run's model is {model}"
    near = nearest(key, siblings)
    suggestion = elsewhere or (".".join([*folders, near]) if near else None)
    if suggestion:
        return f"did you mean {suggestion}?"
    return f"known: {', '.join(siblings)}"


def _all_keys(model: str) -> Iterator[str]:
    for group in GROUPS:
        yield from (f"{group}.{key}" for key in known_keys(group, model))


def _shown(value: Any) -> str:
    text = one_line(repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."
