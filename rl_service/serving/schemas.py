"""What a request's body may hold. Strict: a surplus key or a string for a number is refused.

The nesting of an observation follows the policy's space, so that a body is either read into plain
lists of floats or refused here, before any array is made of it.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from rl_service.common.text import one_line
from rl_service.serving.errors import RequestError

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_LARGEST = float(np.finfo(np.float32).max)
_SHOWN_CHARACTERS = 300
_MOST = {b":": ("keys", 20_000), b"[": ("lists", 100_000), b",": ("values", 500_000)}
"""Limits of a body, checked by counting these bytes. Parsing holds the replica's event loop: a body
at a limit takes about 0.1 s."""


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class OpenSession(Body):
    """`POST /v1/sessions`."""

    policy: Annotated[str, Field(min_length=1, max_length=200)]
    value: bool = False
    """Whether each reply shall tell the critic's value."""


@cache
def act_body(obs_ndim: int, action_ndim: int) -> type[Body]:
    """The body of `POST /v1/policies/{name}/act`.

    Args:
        obs_ndim: dimensions of one observation.
        action_ndim: dimensions of one action in the policy's units: 0 or 1.
    """
    obs, rows, actions = nested(obs_ndim), nested(obs_ndim + 1), nested(action_ndim + 1)
    history = create_model(
        "History", __base__=Body, observations=(rows, ...), actions=(actions, ...)
    )
    return create_model(
        "Act",
        __base__=Body,
        observation=(obs | None, None),
        observations=(rows | None, None),
        deterministic=(bool, True),
        history=(history | Annotated[list[history], Field(fail_fast=True)] | None, None),
        value=(bool, False),
    )


@cache
def session_act_body(obs_ndim: int) -> type[Body]:
    """The body of `POST /v1/sessions/{id}/act`."""
    return create_model(
        "SessionAct",
        __base__=Body,
        observation=(nested(obs_ndim), ...),
        reward=(Number | None, None),
        deterministic=(bool, True),
    )


def nested(ndim: int) -> Any:
    """Lists of numbers, so many levels deep."""
    kind: Any = Number
    for _ in range(ndim):
        kind = Annotated[list[kind], Field(fail_fast=True)]
    return kind


def read_body(schema: type[Any], body: bytes, expected: str) -> Any:
    """A checked body.

    Args:
        schema: what it may hold.
        body: JSON text.
        expected: says in words what it should hold.

    Raises:
        RequestError: 400 if it is no JSON, 422 if it holds something else.
    """
    for sign, (what, most) in _MOST.items():
        if body.count(sign) > most:
            message = f"the body has more than {most:,} {what}; send less at a time"
            raise RequestError(422, "invalid_request", message)
    try:
        return schema.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    message = one_line(problem["msg"])[:_SHOWN_CHARACTERS]
    if problem["type"] == "json_invalid":
        raise RequestError(400, "invalid_json", f"the body is no JSON: {message}; send {expected}")
    where = ".".join(str(part) for part in problem["loc"][:4])[:_SHOWN_CHARACTERS] or "body"
    raise RequestError(422, "invalid_request", one_line(f"{where}: {message}; expected {expected}"))


def as_array(rows: list[Any], shape: tuple[int, ...], what: str, dtype: Any = np.float32) -> Any:
    """Numbers (B, *shape) of nested lists.

    Raises:
        RequestError: 422 if a row has another shape, or a number does not fit float32.
    """
    expected = f"each of shape {list(shape)}"
    if not rows:
        return np.zeros((0, *shape), dtype)
    try:
        array = np.array(rows, np.float64)
    except ValueError:  # rows of unequal length
        raise RequestError(422, "wrong_shape", f"{what} differ in shape; {expected}") from None
    if array.shape != (len(rows), *shape):
        found = list(array.shape[1:])
        raise RequestError(422, "wrong_shape", f"{what} have shape {found}; expected {expected}")
    if array.size and np.abs(array).max() > _LARGEST:
        raise RequestError(
            422, "not_finite", f"{what} hold numbers that float32 has not; send finite ones"
        )
    return array.astype(dtype)
