"""What a request may hold: limits, bodies, and the arrays that are made of them.

Strict: a surplus key or a string for a number is refused.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from custom_models.history import History
from custom_models.kinds import PositiveFloat, PositiveInt
from custom_models.spaces import ActionSpec, FloatArray
from custom_models.text import one_line
from rl_service.common.errors import ObservationError
from rl_service.policies.observing import Mask, ObservationReader
from rl_service.policies.simple_spaces import BoxSpec
from rl_service.policies.spaces import Space
from rl_service.serving.body_types import (
    LARGEST,
    Finite,
    list_of,
    mask_type,
    observation_type,
    policy_action_type,
)
from rl_service.serving.refusals import RequestError

_SHOWN_CHARACTERS = 300
_MOST = {b":": ("keys", 20_000), b"[": ("lists", 100_000), b",": ("values", 500_000)}
"""Limits of a body, checked by counting these bytes. Parsing holds the replica's event loop: a body
at a limit takes about 0.1 s."""

_MOST_NUMBERS = 2**25
"""Of the rows of one request, 128 MB: a choice or a text of a few bytes may be a long row."""


class Limits(BaseModel):
    """Bounds that keep one client from taking the service from all others."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_body_bytes: PositiveInt = 4 * 2**20
    """A batch of 4096 observations of 40 numbers takes 3 MB as text."""
    body_timeout_s: PositiveFloat = 30.0
    """For a whole body. HAProxy itself waits 10 s for one of up to 16 KB."""
    max_batch_size: PositiveInt = 4096
    """Observations in one request."""
    max_ongoing_requests: PositiveInt = 256
    """Of one replica, whose bodies have arrived; more are answered with 503 and `Retry-After`."""
    max_sessions: PositiveInt = 10_000
    """Of the service; at 4 KB each they fit in 40 MB."""
    session_ttl_s: PositiveFloat = 900.0
    """A session without a request for this long is forgotten."""
    max_loaded_policies: PositiveInt = 8
    """Of one replica; the least recently used one is unloaded."""
    max_batch_rows: PositiveInt = 1024
    """Rows of several requests that go through the net together."""


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


WithValue = Annotated[
    bool, Field(description="Whether replies also give the return that the critic expects.")
]


class OpenSession(Body):
    """`POST /v1/sessions`."""

    policy: Annotated[str, Field(min_length=1, max_length=200)]
    value: WithValue = False


def act_body(space: Space, action_spec: ActionSpec, max_batch_size: int) -> type[Body]:
    """The body of `POST /v1/policies/{name}/act`.

    The schema documents the sizes; what reads the parts and the service check them, since their
    messages name the shape that was expected and the shape that was found.

    Args:
        space: of the environment's observations.
        action_spec: the actions of the policy, whose units a history has.
        max_batch_size: observations in one request.
    """
    obs, action, mask = (
        observation_type(space, action_spec),
        policy_action_type(action_spec),
        mask_type(action_spec),
    )
    history = create_model(
        "History", __base__=Body, observations=(list_of(obs), ...), actions=(list_of(action), ...)
    )
    batch = list_of(obs, minItems=1, maxItems=max_batch_size)
    masks: Any = None
    if mask is not None:
        masks = mask | list_of(mask, maxItems=max_batch_size) | None
    return create_model(
        "Act",
        __base__=Body,
        observation=(obs | None, None),
        observations=(batch | None, None),
        action_mask=(masks, None),
        deterministic=(bool, True),
        history=(history | list_of(history, maxItems=max_batch_size) | None, None),
        value=(WithValue, False),
    )


def session_act_body(space: Space, action_spec: ActionSpec) -> type[Body]:
    """The body of `POST /v1/sessions/{id}/act`; arguments as of `act_body`."""
    mask = mask_type(action_spec)
    reward = Annotated[
        Finite | None, Field(description="For the step before; summed up, not acted on.")
    ]
    return create_model(
        "SessionAct",
        __base__=Body,
        observation=(observation_type(space, action_spec), ...),
        action_mask=(None if mask is None else mask | None, None),
        reward=(reward, None),
        deterministic=(bool, True),
    )


def read_body(schema: type[Any], body: bytes, expected: str) -> Any:
    """A checked body.

    Args:
        schema: what it may hold.
        body: JSON text.
        expected: says in words what it should hold.

    Raises:
        RequestError: 400 if it is not JSON, 422 if it holds something else.
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
        raise RequestError(400, "invalid_json", f"the body is not JSON: {message}; send {expected}")
    where = ".".join(str(part) for part in problem["loc"][:4])[:_SHOWN_CHARACTERS] or "body"
    raise RequestError(422, "invalid_request", one_line(f"{where}: {message}; expected {expected}"))


def as_array(rows: list[Any], shape: tuple[int, ...], what: str) -> FloatArray:
    """Numbers (B, *shape) of nested lists.

    Raises:
        RequestError: 422 if a row has another shape, or a number does not fit float32.
    """
    expected = f"each of shape {list(shape)}"
    if not rows:
        return np.zeros((0, *shape), np.float32)
    try:
        array = np.array(rows, np.float64)
    except ValueError:  # rows of unequal length
        raise RequestError(422, "wrong_shape", f"{what} differ in shape; {expected}") from None
    if array.shape != (len(rows), *shape):
        found = list(array.shape[1:])
        raise RequestError(422, "wrong_shape", f"{what} have shape {found}; expected {expected}")
    if array.size and np.abs(array).max() > LARGEST:
        raise RequestError(
            422, "not_finite", f"{what} hold numbers beyond the range of float32; send finite ones"
        )
    return array.astype(np.float32)


def read_observations(
    rows: list[Any], masks: list[Any] | None, reader: ObservationReader, what: str
) -> tuple[FloatArray, Mask | None]:
    """What a policy reads of B observations, and which logits are allowed.

    Args:
        rows: as a body holds them.
        masks: B action masks of a body, or None.
        reader: of the policy.
        what: the key of the observations in the body.

    Returns:
        (B, *row_shape), and (B, D) or None if all are allowed.

    Raises:
        RequestError: 422 if one does not fit the policy's spaces, or a mask allows no action; 413
            if they would take too much memory.
    """
    masks = [None] * len(rows) if masks is None else masks
    if len(masks) != len(rows):
        raise RequestError(
            422, "wrong_shape", f"action_mask is of {len(masks)} rows; there are {len(rows)}"
        )
    shape = reader.row_shape
    most = _MOST_NUMBERS // math.prod(shape)
    if len(rows) > most:
        message = f"{what} hold {len(rows)} rows; send {most} at most, as each one is long"
        raise RequestError(413, "batch_size", message)
    try:
        if isinstance(reader.space, BoxSpec):
            obs = as_array(rows, shape, what)
            read_masks = [reader.read_mask(mask) for mask in masks]
        else:
            places = [what] if what == "observation" else [f"{what}[{i}]" for i in range(len(rows))]
            read = [reader.read(*each) for each in zip(rows, masks, places, strict=True)]
            obs = np.array([row for row, _ in read], np.float32).reshape(len(rows), *shape)
            read_masks = [mask for _, mask in read]
    except ObservationError as error:
        raise RequestError(422, "invalid_observation", str(error)) from error
    if all(mask is None for mask in read_masks):
        return obs, None
    everything = np.ones(reader.action_spec.num_dist_inputs, np.bool_)
    return obs, np.array([everything if mask is None else mask for mask in read_masks])


def read_histories(
    given: list[Any] | None, obs: FloatArray, reader: ObservationReader, num_earlier: int
) -> History | None:
    """The steps before each of B observations, as a client carries them.

    Args:
        given: B histories of a body, or None.
        obs: (B, *row_shape).
        reader: of the policy.
        num_earlier: K-1, steps that are read; longer histories lose their beginning.

    Returns:
        None if the client sent none, or if none is read.

    Raises:
        RequestError: 422 if a history does not fit its observation.
    """
    if given is None:
        return None
    if len(given) != len(obs):
        raise RequestError(
            422, "wrong_shape", f"history is of {len(given)} rows; there are {len(obs)}"
        )
    if num_earlier == 0:
        return None
    histories = []
    for history, row in zip(given, obs, strict=True):
        if len(history.observations) != len(history.actions):
            raise RequestError(
                422,
                "wrong_shape",
                f"history has {len(history.observations)} observations and "
                f"{len(history.actions)} actions; send the action that was taken at each "
                f"observation before this one",
            )
        # A row may be far larger than its JSON, so what is not read must not become one.
        last = history.observations[-num_earlier:]
        earlier, _ = read_observations(last, None, reader, "history.observations")
        actions = _read_actions(history.actions[-num_earlier:], reader.action_spec)
        flat = earlier.reshape(len(earlier), row.size)
        histories.append(episode(flat, actions, row.reshape(-1), reader.action_spec, num_earlier))
    return History(*(np.concatenate(parts) for parts in zip(*histories, strict=True)))


def episode(
    earlier_obs: FloatArray,
    actions: npt.NDArray[np.float32],
    obs: FloatArray,
    action_spec: ActionSpec,
    num_earlier: int,
) -> History:
    """The history of one observation, from the last K-1 of the steps before it.

    Args:
        earlier_obs: (N, O).
        actions: (N, A) taken at them, in the policy's units; A is 1 for a discrete policy.
        obs: (O,).
        action_spec: the actions of the policy.
        num_earlier: K-1.
    """
    first = max(0, len(earlier_obs) - num_earlier)
    earlier_obs, actions = earlier_obs[first:], actions[first:]
    num_steps = len(earlier_obs)
    history = History.first_steps(obs[None], num_earlier + 1, action_spec)
    if num_steps:
        history.obs[0, num_earlier - num_steps : -1] = earlier_obs
        kept = history.actions[0, num_earlier - num_steps :]
        kept[...] = actions.reshape(kept.shape)
    history.num_steps[0] = num_steps
    return history


def _read_actions(given: list[Any], spec: ActionSpec) -> FloatArray:
    """Actions (N, A) that a client says it has taken, in the policy's units."""
    actions = as_array(given, spec.row_shape, "history.actions")
    actions = actions.reshape(len(given), math.prod(spec.row_shape))
    if not spec.is_categorical:
        return actions
    sizes = np.array(spec.sizes or (spec.size,))
    known = (actions >= 0) & (actions < sizes) & (actions == np.floor(actions))
    if not known.all():
        last = (sizes - 1).tolist()
        raise RequestError(
            422,
            "unknown_action",
            f"history.actions holds no such action; expected integers from 0 to "
            f"{last if spec.sizes else last[0]}",
        )
    return actions
