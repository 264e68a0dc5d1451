"""What the service answers to Python clients: actions or an error, and when to ask again.

Nothing here opens a connection or waits.
"""

from __future__ import annotations

import random
import time
from typing import Any, NamedTuple

import httpx
import numpy as np
import numpy.typing as npt

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0
_TRY_AGAIN = frozenset({429, 500, 502, 503, 504})
"""500 is what the proxy says while a replica that died is replaced."""
_OF_PROXY = "proxy_error"
Request = dict[str, Any]
"""Arguments of `request` of httpx's clients."""


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


class Retries:
    """When to send a request again.

    Args:
        request: for messages.
        patience_s: in all.
    """

    def __init__(self, request: Request, patience_s: float) -> None:
        self._request = request
        self._deadline = time.monotonic() + patience_s
        self._wait_s = _FIRST_WAIT_S

    def pause_s(self, outcome: httpx.Response | httpx.TransportError) -> float:
        """The wait before the next attempt, after one that failed.

        Raises:
            PolicyServiceError: if the service refuses the request, or patience is at its end.
        """
        error, hint_s = _problem(outcome, self._request)
        # Not the same for all, so that clients spread out.
        pause_s = max(hint_s, self._wait_s * random.uniform(0.5, 1.0))
        if time.monotonic() + pause_s > self._deadline:
            raise error
        self._wait_s = min(2.0 * self._wait_s, _LONGEST_WAIT_S)
        return pause_s


def _problem(
    outcome: httpx.Response | httpx.TransportError, request: Request
) -> tuple[PolicyServiceError, float]:
    """A failure that may pass, and how long the service asks to wait; raises any other."""
    request_id = request["headers"]["X-Request-ID"]
    if not isinstance(outcome, httpx.Response):
        message = f"{request['method']} {request['url']}: {outcome or type(outcome).__name__}"
        return PolicyServiceError(0, "unreachable", message, request_id), 0.0
    status = outcome.status_code
    try:
        refusal = outcome.json()["error"]
        code, message = str(refusal["code"]), str(refusal["message"])
    except (ValueError, KeyError, TypeError):  # the proxy's own have another shape
        code, message = _OF_PROXY, outcome.text[:200] or outcome.reason_phrase
    error = PolicyServiceError(status, code, message, request_id)
    starting = status == 404 and code == _OF_PROXY  # a proxy that has just started knows no route
    if not starting and (status not in _TRY_AGAIN or code == "internal_error"):
        raise error
    hint = outcome.headers.get("Retry-After", "")
    return error, float(hint) if hint.isascii() and hint.isdigit() else 0.0


def read_action(reply: dict[str, Any]) -> Action:
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
