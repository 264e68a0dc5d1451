"""Python's side of the service: `act`, sessions, and trying again when that helps.

    with PolicyClient("http://127.0.0.1:8000") as client:
        client.act("lunarlander", observation).action
        with client.session("lunarlander") as session:
            session.act(observation)

`AsyncPolicyClient` is the same with `await`. Needs httpx and NumPy, neither torch nor Ray.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Generator
from types import TracebackType
from typing import Any, NamedTuple

import httpx
import numpy as np
import numpy.typing as npt

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0
_TRY_AGAIN = frozenset({429, 500, 502, 503, 504})
"""500 is what the proxy says while a replica that died is replaced."""


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


class _Call(NamedTuple):
    """One request, as both clients send it."""

    method: str
    path: str
    body: Any
    request_id: str


_Attempts = Generator[float, httpx.Response | httpx.TransportError, dict[str, Any]]


def _attempts(call: _Call, patience_s: float) -> _Attempts:
    """Takes the outcome of each attempt, yields the wait before the next, ends with the reply.

    All attempts carry the same request id, so that a step of a session is taken once however
    often it is sent.
    """
    deadline = time.monotonic() + patience_s
    wait_s = _FIRST_WAIT_S
    outcome = yield 0.0
    while True:
        if isinstance(outcome, httpx.Response):
            if outcome.is_success:
                return dict(outcome.json())
            error = _error(outcome, call.request_id)
            if outcome.status_code not in _TRY_AGAIN or error.code == "internal_error":
                raise error
            hint = _retry_after_s(outcome)
        else:
            message = f"{call.method} {call.path}: {outcome or type(outcome).__name__}"
            error = PolicyServiceError(0, "unreachable", message, call.request_id)
            hint = 0.0
        pause_s = max(hint, wait_s * random.uniform(0.5, 1.0))  # so that clients spread out
        if time.monotonic() + pause_s > deadline:
            raise error
        wait_s = min(2.0 * wait_s, _LONGEST_WAIT_S)
        outcome = yield pause_s


class PolicyClient:
    """A service, seen from Python. May be shared by threads.

    Args:
        url: of the service.
        token: if the service asks for one.
        timeout_s: of one attempt.
        patience_s: how long to try again, in all, while the service is busy or being replaced.
        transport: of httpx, for tests.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = 10.0,
        patience_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(
            base_url=url, headers=_headers(token), timeout=timeout_s, transport=transport
        )
        self._patience_s = patience_s

    def __enter__(self) -> PolicyClient:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes its connections."""
        self._http.close()

    def policies(self) -> list[dict[str, Any]]:
        """What is served: spaces, versions, scores."""
        found: list[dict[str, Any]] = self._send("GET", "/v1/policies")["policies"]
        return found

    def act(
        self,
        policy: str,
        observation: npt.ArrayLike,
        *,
        deterministic: bool = True,
        history: Any = None,
        value: bool = False,
    ) -> Action:
        """The action at one observation.

        Args:
            policy: `name`, or `name:version`.
            observation: as the environment gives it.
            deterministic: the most likely action instead of a sample.
            history: `{"observations": [...], "actions": [...]}`: the steps before, oldest first,
                the actions as `Action.policy_action` gave them.
            value: also ask the critic; `history` should then begin with the episode.

        Raises:
            PolicyServiceError: if the service refuses it, or does not answer in time.
        """
        body = _act_body("observation", observation, deterministic, history, value)
        return _action(self._send("POST", f"/v1/policies/{policy}/act", body))

    def act_batch(
        self,
        policy: str,
        observations: npt.ArrayLike,
        *,
        deterministic: bool = True,
        history: Any = None,
        value: bool = False,
    ) -> ActionBatch:
        """Actions at B observations; `history` is a list, one for each."""
        body = _act_body("observations", observations, deterministic, history, value)
        return _action_batch(self._send("POST", f"/v1/policies/{policy}/act", body))

    def session(self, policy: str, *, value: bool = False) -> Session:
        """An episode that the service remembers; a context manager that closes it.

        Args:
            policy: `name`, or `name:version`.
            value: each reply also tells what the critic expects from there on.
        """
        body = {"policy": policy, "value": value}
        return Session(self, self._send("POST", "/v1/sessions", body)["session"])

    def _send(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        call = _Call(method, path, body, secrets.token_hex(8))
        attempts = _attempts(call, self._patience_s)
        pause_s = next(attempts)
        while True:
            time.sleep(pause_s)
            try:
                outcome: httpx.Response | httpx.TransportError = self._http.request(
                    method, path, json=body, headers={"X-Request-ID": call.request_id}
                )
            except httpx.TransportError as error:
                outcome = error
            try:
                pause_s = attempts.send(outcome)
            except StopIteration as done:
                reply: dict[str, Any] = done.value
                return reply


class Session:
    """One episode. The service keeps its history, whichever replica answers.

    Args:
        client: that opened it.
        session_id: of the service.
    """

    def __init__(self, client: PolicyClient, session_id: str) -> None:
        self._client, self.id = client, session_id

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def act(
        self,
        observation: npt.ArrayLike,
        *,
        reward: float | None = None,
        deterministic: bool = True,
    ) -> Action:
        """The action at the next step; `reward` is that of the step before."""
        body = _session_body(observation, reward, deterministic)
        return _action(self._client._send("POST", f"/v1/sessions/{self.id}/act", body))

    def close(self) -> None:
        """Lets the service forget it; it may have done so already."""
        try:
            self._client._send("DELETE", f"/v1/sessions/{self.id}")
        except PolicyServiceError as error:
            if error.status != 404:
                raise


class AsyncPolicyClient:
    """`PolicyClient` with `await`; see there."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = 10.0,
        patience_s: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = httpx.AsyncClient(
            base_url=url, headers=_headers(token), timeout=timeout_s, transport=transport
        )
        self._patience_s = patience_s

    async def __aenter__(self) -> AsyncPolicyClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes its connections."""
        await self._http.aclose()

    async def policies(self) -> list[dict[str, Any]]:
        """See `PolicyClient`."""
        found: list[dict[str, Any]] = (await self._send("GET", "/v1/policies"))["policies"]
        return found

    async def act(
        self,
        policy: str,
        observation: npt.ArrayLike,
        *,
        deterministic: bool = True,
        history: Any = None,
        value: bool = False,
    ) -> Action:
        """See `PolicyClient`."""
        body = _act_body("observation", observation, deterministic, history, value)
        return _action(await self._send("POST", f"/v1/policies/{policy}/act", body))

    async def act_batch(
        self,
        policy: str,
        observations: npt.ArrayLike,
        *,
        deterministic: bool = True,
        history: Any = None,
        value: bool = False,
    ) -> ActionBatch:
        """See `PolicyClient`."""
        body = _act_body("observations", observations, deterministic, history, value)
        return _action_batch(await self._send("POST", f"/v1/policies/{policy}/act", body))

    def session(self, policy: str, *, value: bool = False) -> AsyncSession:
        """See `PolicyClient`; it is opened by `async with`."""
        return AsyncSession(self, policy, value)

    async def _send(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        call = _Call(method, path, body, secrets.token_hex(8))
        attempts = _attempts(call, self._patience_s)
        pause_s = next(attempts)
        while True:
            await asyncio.sleep(pause_s)
            try:
                outcome: httpx.Response | httpx.TransportError = await self._http.request(
                    method, path, json=body, headers={"X-Request-ID": call.request_id}
                )
            except httpx.TransportError as error:
                outcome = error
            try:
                pause_s = attempts.send(outcome)
            except StopIteration as done:
                reply: dict[str, Any] = done.value
                return reply


class AsyncSession:
    """`Session` with `await`.

    Args:
        client: that opens it.
        policy: `name`, or `name:version`.
        value: see `PolicyClient.session`.
    """

    def __init__(self, client: AsyncPolicyClient, policy: str, value: bool) -> None:
        self._client, self._policy, self._value, self.id = client, policy, value, ""

    async def __aenter__(self) -> AsyncSession:
        body = {"policy": self._policy, "value": self._value}
        opened = await self._client._send("POST", "/v1/sessions", body)
        self.id = opened["session"]
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._client._send("DELETE", f"/v1/sessions/{self.id}")
        except PolicyServiceError as error:
            if error.status != 404:
                raise

    async def act(
        self,
        observation: npt.ArrayLike,
        *,
        reward: float | None = None,
        deterministic: bool = True,
    ) -> Action:
        """See `Session`."""
        body = _session_body(observation, reward, deterministic)
        return _action(await self._client._send("POST", f"/v1/sessions/{self.id}/act", body))


def _headers(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _act_body(
    key: str, observations: npt.ArrayLike, deterministic: bool, history: Any, value: bool
) -> dict[str, Any]:
    body = {key: np.asarray(observations).tolist(), "deterministic": deterministic}
    if value:
        body["value"] = True
    return body if history is None else body | {"history": history}


def _session_body(
    observation: npt.ArrayLike, reward: float | None, deterministic: bool
) -> dict[str, Any]:
    body = {"observation": np.asarray(observation).tolist(), "deterministic": deterministic}
    return body if reward is None else body | {"reward": float(reward)}


def _action(reply: dict[str, Any]) -> Action:
    return Action(
        action=_env_action(reply["action"]),
        log_prob=reply["log_prob"],
        policy=reply["policy"],
        version=reply["version"],
        request_id=reply["request_id"],
        policy_action=reply.get("policy_action"),
        value=reply.get("value"),
    )


def _action_batch(reply: dict[str, Any]) -> ActionBatch:
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
    return array if array.dtype.kind == "i" else array.astype(np.float32)


def _retry_after_s(response: httpx.Response) -> float:
    given = response.headers.get("Retry-After", "")
    return float(given) if given.isascii() and given.isdigit() else 0.0


def _error(response: httpx.Response, request_id: str) -> PolicyServiceError:
    """What a reply says; the proxy's own have another shape."""
    try:
        told = response.json()["error"]
        code, message = str(told["code"]), str(told["message"])
    except (ValueError, KeyError, TypeError):
        code, message = "proxy_error", response.text[:200] or response.reason_phrase
    return PolicyServiceError(response.status_code, code, message, request_id)
