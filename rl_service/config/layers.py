"""Layers of raw settings and how a later one overrides an earlier one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

GROUPS = ("env", "model", "algorithm", "resources", "stop", "evaluation", "tracking")
TOP_LEVEL = (*GROUPS, "seed")
_RUN_LENGTH = ("iterations", "env_steps")


@dataclass
class Layer:
    """Raw settings from one source."""

    source: str
    """Where they come from, in the user's words: a file, a flag, a preset."""
    values: dict[str, Any] = field(default_factory=dict)
    """The seed, and one mapping a group."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Single entries of `env.kwargs`, added to those of the layers below."""

    def put(self, group: str, key: str, value: Any) -> None:
        """Sets `group.key`."""
        self.values.setdefault(group, {})[key] = value

    def get(self, group: str, key: str) -> Any:
        """The value of `group.key`, or None."""
        return self.values.get(group, {}).get(key)

    def has(self, group: str, key: str | None = None) -> bool:
        """Whether this layer gives the top-level entry `group`, or `group.key`."""
        if key is None or group not in GROUPS:
            return group in self.values
        if (group, key) == ("env", "kwargs") and self.env_kwargs:
            return True
        return key in self.values.get(group, {})

    def take_out_malformed_groups(self) -> list[str]:
        """Removes groups that hold no mapping; returns one problem for each."""
        problems = []
        for group in GROUPS:
            content = self.values.get(group, {})
            if isinstance(content, Mapping):
                continue
            del self.values[group]
            if content is not None:  # an empty group, written `env:`, gives nothing
                problems.append(
                    f"{group}={content!r} (from {self.source}): it is a group of settings; "
                    f"give {group}.name=value one by one"
                )
        return problems


def merge(layers: list[Layer]) -> dict[str, Any]:
    """Merges layers key by key; later layers win.

    A layer that gives only one of `stop.iterations` and `stop.env_steps` removes the other one of
    an earlier layer, since the user means the length that they gave last. `env.kwargs` of a file
    replaces an earlier one as a whole, so that a dumped run reads back exactly.
    """
    merged: dict[str, Any] = {group: {} for group in GROUPS}
    for layer in layers:
        for name, values in layer.values.items():
            if name not in GROUPS:
                merged[name] = values
                continue
            if name == "stop":
                merged["stop"].update(_forget_other_length(values))
            merged[name].update(values)
        if layer.env_kwargs:
            merged["env"]["kwargs"] = {**merged["env"].get("kwargs", {}), **layer.env_kwargs}
    return merged


def source_of(layers: list[Layer], group: str, key: str | None) -> str | None:
    """Source of the last layer that gives `group.key`; None for a default."""
    for layer in reversed(layers):
        if layer.has(group, key):
            return layer.source
    return None


def winner(layers: list[Layer], group: str, key: str) -> Any:
    """The value that the last layer with `group.key` gives, or None."""
    for layer in reversed(layers):
        if layer.has(group, key):
            return layer.get(group, key)
    return None


def _forget_other_length(stop: Mapping[str, Any]) -> dict[str, None]:
    given = [key for key in _RUN_LENGTH if stop.get(key) is not None]
    if len(given) != 1:
        return {}
    other = _RUN_LENGTH[1 - _RUN_LENGTH.index(given[0])]
    return {} if other in stop else {other: None}
