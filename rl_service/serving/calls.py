"""What the Python clients send, and how they read what comes back: all but the waiting.

Nothing here opens a connection. A client sends a `Call`, tells `attempts` what came of it, and
waits as long as that says.
"""

from __future__ import annotations

import json
import random
import secrets
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import numpy as np
import numpy.typing as npt

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0
_TRY_AGAIN = frozenset({429, 500, 502, 503, 504})
"""500 is what the proxy says while a replica that died is replaced."""
_OF_PROXY = "proxy_error"


class Action(NamedTuple):
    """The reply to one observation."""

    action: Any
    """An integer, or an array of the action's shape: what `env.step` takes."""
    log_prob: float
    policy: str
    version: int
    request_id: str
    policy_action: Any = None
    """In the policy's units; given by policies with a history, for clients that carry it."""
    value: float | None = None
    """What the critic expects from here on, if it was asked."""


class ActionBatch(NamedTuple):
    """The reply to B observations."""

    actions: npt.NDArray[Any]
    """(B,) or (B, *shape)"""
    log_prob: npt.NDArray[np.float32]
    """(B,)"""
    policy: str
    version: int
    request_id: str
    policy_actions: npt.NDArray[Any] | None = None
    """See `Action`."""
    values: npt.NDArray[np.float32] | None = None
    """(B,); see `Action`."""


class PolicyServiceError(Exception):
    """The service refused a request, or could not be reached in time.

    Attributes:
        status: of HTTP; 0 if there was no reply.
        code: the service's word for it.
        request_id: to be found in the service's log.
    """

    def __init__(self, status: int, code: str, message: str, request_id: str) -> None:
        super().__init__(f"{message} ({status} {code}, request {request_id})")
        self.status, self.code, self.request_id = status, code, request_id


@dataclass(frozen=True)
class Call:
    """One request. All attempts carry the same id, so that a step is taken once."""

    method: str
    path: str
    body: dict[str, Any] | None = None
    request_id: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def http_arguments(self) -> dict[str, Any]:
        """Of `request` of httpx's clients.

        Raises:
            PolicyServiceError: if the body holds NaN, or something that is no number.
        """
        arguments: dict[str, Any] = {
            "method": self.method,
            "url": self.path,
            "headers": {"X-Request-ID": self.request_id},
        }
        if self.body is None:
            return arguments
        try:
            arguments["content"] = json.dumps(self.body, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise PolicyServiceError(
                0, "invalid_request", f"not sent: {error}; give finite numbers", self.request_id
            ) from error
        arguments["headers"] |= {"Content-Type": "application/json"}
        return arguments


def list_policies() -> Call:
    """Asks what is served."""
    return Call("GET", "/v1/policies")


def act(
    policy: str,
    key: str,
    observations: npt.ArrayLike,
    deterministic: bool,
    history: Any,
    value: bool,
) -> Call:
    """Asks for actions; `key` is `observation`, or `observations` of a batch."""
    body = {key: np.asarray(observations).tolist(), "deterministic": deterministic}
    if value:
        body["value"] = True
    if history is not None:
        body["history"] = as_json(history)
    return Call("POST", f"/v1/policies/{quote(policy, safe=':')}/act", body)


def open_session(policy: str, value: bool) -> Call:
    """Begins an episode; with `value`, its replies tell the critic's value."""
    return Call("POST", "/v1/sessions", {"policy": policy, "value": value})


def session_act(
    session_id: str, observation: npt.ArrayLike, reward: float | None, deterministic: bool
) -> Call:
    """Asks for the action at the next step of an episode."""
    body = {"observation": np.asarray(observation).tolist(), "deterministic": deterministic}
    if reward is not None:
        body["reward"] = float(reward)
    return Call("POST", f"/v1/sessions/{quote(session_id, safe='')}/act", body)


def close_session(session_id: str) -> Call:
    """Ends an episode."""
    return Call("DELETE", f"/v1/sessions/{quote(session_id, safe='')}")


def headers(token: str | None) -> dict[str, str]:
    """Of every request."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def as_json(value: Any) -> Any:
    """Nested dictionaries and lists in which arrays, and numbers of NumPy, may stand anywhere."""
    if isinstance(value, dict):
        return {key: as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


Attempts = Generator[float, httpx.Response | httpx.TransportError, dict[str, Any]]


def attempts(call: Call, patience_s: float) -> Attempts:
    """Takes the outcome of each attempt, yields the wait before the next, ends with the reply.

    Raises:
        PolicyServiceError: if the service refuses the call, or patience is at its end.
    """
    deadline = time.monotonic() + patience_s
    wait_s = _FIRST_WAIT_S
    outcome = yield 0.0
    while True:
        if isinstance(outcome, httpx.Response) and outcome.is_success:
            return dict(outcome.json())
        error, hint_s = _problem(outcome, call)
        pause_s = max(hint_s, wait_s * random.uniform(0.5, 1.0))  # so that clients spread out
        if time.monotonic() + pause_s > deadline:
            raise error
        wait_s = min(2.0 * wait_s, _LONGEST_WAIT_S)
        outcome = yield pause_s


def _problem(
    outcome: httpx.Response | httpx.TransportError, call: Call
) -> tuple[PolicyServiceError, float]:
    """A failure that may pass, and how long the service asks to wait; raises any other."""
    if not isinstance(outcome, httpx.Response):
        message = f"{call.method} {call.path}: {outcome or type(outcome).__name__}"
        return PolicyServiceError(0, "unreachable", message, call.request_id), 0.0
    error = _error(outcome, call.request_id)
    # A proxy that has just started knows no route yet.
    starting = outcome.status_code == 404 and error.code == _OF_PROXY
    passing = outcome.status_code in _TRY_AGAIN and error.code != "internal_error"
    if not (starting or passing):
        raise error
    return error, _retry_after_s(outcome)


def read_action(reply: dict[str, Any]) -> Action:
    """Of the reply to one observation."""
    return Action(
        action=_env_action(reply["action"]),
        log_prob=reply["log_prob"],
        policy=reply["policy"],
        version=reply["version"],
        request_id=reply["request_id"],
        policy_action=reply.get("policy_action"),
        value=reply.get("value"),
    )


def read_action_batch(reply: dict[str, Any]) -> ActionBatch:
    """Of the reply to several."""
    taken, values = reply.get("policy_actions"), reply.get("values")
    return ActionBatch(
        actions=_env_action(reply["actions"]),
        log_prob=np.asarray(reply["log_prob"], np.float32),
        policy=reply["policy"],
        version=reply["version"],
        request_id=reply["request_id"],
        policy_actions=None if taken is None else np.asarray(taken),
        values=None if values is None else np.asarray(values, np.float32),
    )


def _env_action(action: Any) -> Any:
    if not isinstance(action, list):
        return action
    array = np.asarray(action)
    if array.dtype.kind == "i":
        return array
    single = array.astype(np.float32)  # of most spaces; the numbers of others would be rounded
    return single if (single == array).all() else array


def _retry_after_s(response: httpx.Response) -> float:
    given = response.headers.get("Retry-After", "")
    return float(given) if given.isascii() and given.isdigit() else 0.0


def _error(response: httpx.Response, request_id: str) -> PolicyServiceError:
    """What a reply says; the proxy's own have another shape."""
    try:
        told = response.json()["error"]
        code, message = str(told["code"]), str(told["message"])
    except (ValueError, KeyError, TypeError):
        code, message = _OF_PROXY, response.text[:200] or response.reason_phrase
    return PolicyServiceError(response.status_code, code, message, request_id)
