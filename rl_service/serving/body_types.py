"""The JSON types of observations and actions: a body is read by them, and OpenAPI shows them.

The nesting follows the policy's spaces, so that a body is either read into plain numbers, lists,
dictionaries and texts or refused, before any array is made of it.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import ConfigDict, Field, WithJsonSchema, with_config
from typing_extensions import TypedDict

from custom_models.spaces import ActionSpec
from custom_models.text_rows import MAX_ACTIONS
from rl_service.policies.observing import ACTIONS, TEXT
from rl_service.policies.simple_spaces import (
    BoxSpec,
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    SpaceSpec,
)
from rl_service.policies.spaces import DictSpec, TextSpec, TupleSpec

LARGEST = float(np.finfo(np.float32).max)
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Number = Annotated[Finite, Field(json_schema_extra={"minimum": -LARGEST, "maximum": LARGEST})]
_STRICT = with_config(ConfigDict(extra="forbid", strict=True))


def json_type(space: SpaceSpec) -> Any:
    """What an observation or an action of a space is in JSON."""
    match space:
        case BoxSpec():
            return _nested(Number, space.shape)
        case DiscreteSpec():
            return _integers(space.start, space.start + space.n - 1)
        case MultiDiscreteSpec():  # each component's own limits are checked when it is flattened
            return _nested(_integers(min(space.start), max(space.last)), space.shape)
        case MultiBinarySpec():
            return _nested(_integers(0, 1), space.shape)
        case TextSpec():
            return Annotated[str, Field(max_length=space.max_length)]
        case TupleSpec():
            return tuple[tuple(json_type(part) for part in space.spaces)]  # type: ignore[misc]
        case DictSpec():
            parts = {name: json_type(part) for name, part in space.spaces.items()}
            return _STRICT(TypedDict("Observation", parts))  # type: ignore[operator]
    raise TypeError(f"{space.words} has no type in JSON")


def observation_type(space: SpaceSpec, action_spec: ActionSpec) -> Any:
    """What a client sends: a text may bring the actions to choose among, or must."""
    kind = json_type(space)
    if not isinstance(space, TextSpec) or action_spec.kind != "discrete":
        return kind
    most = min(action_spec.size, MAX_ACTIONS)
    actions = list_of(kind, minItems=1, maxItems=most)
    both = _STRICT(TypedDict("TextAndActions", {TEXT: kind, ACTIONS: actions}))  # type: ignore[operator]
    return both if space.brings_actions else kind | both


def mask_type(action_spec: ActionSpec) -> Any:
    """An entry for each logit; nothing for a Box, where all actions are allowed."""
    if not action_spec.is_categorical:
        return None
    size = action_spec.num_dist_inputs
    return list_of(bool | _integers(0, 1), minItems=size, maxItems=size)


def policy_action_type(spec: ActionSpec) -> Any:
    """An action in the policy's units, as histories have it; whether it exists is checked later."""
    if spec.kind == "box":
        return _nested(Number, (spec.size,))
    schema = {"type": "integer", "minimum": 0, "maximum": max(spec.sizes or (spec.size,)) - 1}
    return _nested(Annotated[Number, WithJsonSchema(schema)], spec.row_shape)


def list_of(kind: Any, **documented: Any) -> Any:
    """A list, refused at its first bad entry; its sizes are checked later, to say what was found.

    Args:
        kind: of its entries.
        documented: goes into the schema.
    """
    return Annotated[list[kind], Field(fail_fast=True, json_schema_extra=documented)]


def _nested(kind: Any, shape: tuple[int, ...]) -> Any:
    """Lists, one level for each size."""
    for size in reversed(shape):
        kind = list_of(kind, minItems=size, maxItems=size)
    return kind


def _integers(first: int, last: int) -> Any:
    return Annotated[int, Field(strict=True, ge=first, le=last)]
