"""Reads `--set group.key=value` texts into a layer."""

from __future__ import annotations

import yaml

from rl_service.config.layers import GROUPS, Layer
from rl_service.config.text import nearest, one_line
from rl_service.config.yaml_text import parse_yaml

_EXAMPLE = "expected group.key=value, such as algorithm.gamma=0.99"


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
        raise ValueError("the value is no YAML; put quotes around text") from error
    match names:
        case ["env", "kwargs", name]:
            layer.env_kwargs[name] = value
        case [group, name] if group in GROUPS:
            layer.put(group, name, value)
        case [name] if name not in GROUPS:
            layer.values[name] = value  # the seed; the schema refuses others, naming the nearest
        case [group, *_] if group in GROUPS:
            raise ValueError(_EXAMPLE)
        case _:
            near = nearest(names[0], GROUPS)
            hint = f"did you mean {near}?" if near else f"groups are {', '.join(GROUPS)}"
            raise ValueError(f"unknown group {names[0]}; {hint}")
