"""A Python client of the service.

    with PolicyClient("http://127.0.0.1:8000") as client:
        client.act("lunarlander", observation).action
        with client.session("lunarlander") as session:
            session.act(observation)

`AsyncPolicyClient` is the same with `await`. Needs httpx and NumPy, neither torch nor Ray.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx
import numpy as np

from custom_models.spaces import flat_mask
from rl_service.serving.replies import (
    Action,
    ActionBatch,
    PolicyServiceError,
    Request,
    Retries,
    read_action,
    read_action_batch,
)

__all__ = [
    "Action",
    "ActionBatch",
    "AsyncPolicyClient",
    "AsyncSession",
    "PolicyClient",
    "PolicyServiceError",
    "Session",
]

ActionT = TypeVar("ActionT")
BatchT = TypeVar("BatchT")
PoliciesT = TypeVar("PoliciesT")
"""What the methods return: values, or awaitables of them."""

Read = Callable[[dict[str, Any]], Any]


class _Client(Generic[ActionT, BatchT, PoliciesT]):
    """The requests that both clients share; arguments as of `PolicyClient`."""

    _http_client: type[Any]

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = 10.0,
        patience_s: float = 30.0,
        transport: httpx.BaseTransport | httpx.AsyncBaseTransport | None = None,
    ) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = self._http_client(
            base_url=url, headers=headers, timeout=timeout_s, transport=transport
        )
        self._patience_s = patience_s

    def _send(self, request: Request, read: Read) -> Any:
        """Sends a request, again if that may help, and reads the reply."""
        raise NotImplementedError

    def policies(self) -> PoliciesT:
        """What is served: spaces, versions, scores."""
        return self._send(_request("GET", "/v1/policies"), lambda reply: reply["policies"])  # type: ignore[no-any-return]

    def act(
        self,
        policy: str,
        observation: Any,
        *,
        action_mask: Any = None,
        deterministic: bool = True,
        history: Any = None,
        value: bool = False,
    ) -> ActionT:
        """The action at one observation.

        Args:
            policy: `name`, or `name:version`.
            observation: as the environment gives it: numbers, arrays, texts, dictionaries, tuples;
                a text may come as `{"text": ..., "admissible_actions": [...]}`.
            action_mask: as the environment gives it in `info["action_mask"]`; None allows all.
            deterministic: the most likely action instead of a sample.
            history: `{"observations": ..., "actions": ...}`, lists or arrays: the steps before,
                oldest first, the actions as `Action.policy_action` gave them.
            value: also ask the critic; `history` should then begin with the episode.

        Raises:
            PolicyServiceError: if the service refuses it or does not answer in time, or if a number
                is not finite.
        """
        body = {"observation": observation, "action_mask": _listed(action_mask)}
        request = _act(policy, body, deterministic, history, value)
        return self._send(request, read_action)  # type: ignore[no-any-return]

    def act_batch(
        self,
        policy: str,
        observations: Any,
        *,
        action_masks: Any = None,
        deterministic: bool = True,
        history: Any = None,
        value: bool = False,
    ) -> BatchT:
        """Actions at B observations; `action_masks` and `history` are lists, one for each."""
        masks = None if action_masks is None else [_listed(mask) for mask in action_masks]
        body = {"observations": observations, "action_mask": masks}
        request = _act(policy, body, deterministic, history, value)
        return self._send(request, read_action_batch)  # type: ignore[no-any-return]


class _Session(Generic[ActionT]):
    """One episode. The service keeps its history, whichever replica answers."""

    id = ""
    """Of the service."""

    def __init__(self, client: _Client[Any, Any, Any], policy: str, value: bool) -> None:
        self._client = client
        self._wanted = {"policy": policy, "value": value}

    def act(
        self,
        observation: Any,
        *,
        action_mask: Any = None,
        reward: float | None = None,
        deterministic: bool = True,
    ) -> ActionT:
        """The action at the next step; `reward` is that of the step before."""
        body = {"observation": observation, "deterministic": deterministic}
        if action_mask is not None:
            body["action_mask"] = _listed(action_mask)
        if reward is not None:
            body["reward"] = float(reward)
        return self._client._send(_request("POST", f"{self._path}/act", body), read_action)  # type: ignore[no-any-return]

    @property
    def _path(self) -> str:
        return f"/v1/sessions/{quote(self.id, safe='')}"

    def _open(self) -> Any:
        request = _request("POST", "/v1/sessions", self._wanted)
        return self._client._send(request, lambda reply: reply["session"])

    def _end(self) -> Any:
        return self._client._send(_request("DELETE", self._path), lambda _: None)


class PolicyClient(_Client[Action, ActionBatch, list[dict[str, Any]]]):
    """A service, seen from Python. May be shared by threads.

    Args:
        url: of the service.
        token: if the service asks for one.
        timeout_s: of one attempt.
        patience_s: how long to try again, in all, while the service is busy or being replaced.
        transport: of httpx, for tests.
    """

    _http_client = httpx.Client

    def __enter__(self) -> PolicyClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes its connections."""
        self._http.close()

    def session(self, policy: str, *, value: bool = False) -> Session:
        """An episode that the service remembers; a context manager that closes it.

        Args:
            policy: `name`, or `name:version`.
            value: each reply also gives what the critic expects from there on.
        """
        return Session(self, policy, value)

    def _send(self, request: Request, read: Read) -> Any:
        retries = Retries(request, self._patience_s)
        while True:
            try:
                reply = self._http.request(**request)
                if reply.is_success:
                    return read(reply.json())
                pause_s = retries.pause_s(reply)
            except httpx.TransportError as error:
                pause_s = retries.pause_s(error)
            time.sleep(pause_s)


class Session(_Session[Action]):
    """See `_Session`; it is open from the start."""

    def __init__(self, client: PolicyClient, policy: str, value: bool) -> None:
        super().__init__(client, policy, value)
        self.id = self._open()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets the service forget it; it may have done so already."""
        try:
            self._end()
        except PolicyServiceError as error:
            if error.status != 404:
                raise


class AsyncPolicyClient(
    _Client[Awaitable[Action], Awaitable[ActionBatch], Awaitable[list[dict[str, Any]]]]
):
    """`PolicyClient` with `await`; see there."""

    _http_client = httpx.AsyncClient

    async def __aenter__(self) -> AsyncPolicyClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes its connections."""
        await self._http.aclose()

    def session(self, policy: str, *, value: bool = False) -> AsyncSession:
        """See `PolicyClient`; it is opened by `async with`."""
        return AsyncSession(self, policy, value)

    async def _send(self, request: Request, read: Read) -> Any:
        retries = Retries(request, self._patience_s)
        while True:
            try:
                reply = await self._http.request(**request)
                if reply.is_success:
                    return read(reply.json())
                pause_s = retries.pause_s(reply)
            except httpx.TransportError as error:
                pause_s = retries.pause_s(error)
            await asyncio.sleep(pause_s)


class AsyncSession(_Session[Awaitable[Action]]):
    """`Session` with `await`."""

    async def __aenter__(self) -> AsyncSession:
        self.id = await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._end()
        except PolicyServiceError as error:
            if error.status != 404:
                raise


def _act(
    policy: str, body: dict[str, Any], deterministic: bool, history: Any, value: bool
) -> Request:
    """Asks for actions at what is in the body."""
    given = {key: each for key, each in body.items() if each is not None}
    given["deterministic"] = deterministic
    if value:
        given["value"] = True
    if history is not None:
        given["history"] = history
    return _request("POST", f"/v1/policies/{quote(policy, safe=':')}/act", given)


def _listed(mask: Any) -> Any:
    """An action mask as JSON has it."""
    return None if mask is None else flat_mask(mask).tolist()


def _request(method: str, path: str, body: dict[str, Any] | None = None) -> Request:
    """Arguments of `request` of httpx's clients, with one id for all attempts: a step counts once.

    Raises:
        PolicyServiceError: if the body holds NaN, or something that JSON cannot.
    """
    request_id = secrets.token_hex(8)
    headers = {"X-Request-ID": request_id}
    request = {"method": method, "url": path, "headers": headers}
    if body is None:
        return request
    try:
        content = json.dumps(body, allow_nan=False, default=_as_list)
    except (TypeError, ValueError) as error:
        raise PolicyServiceError(
            0, "invalid_request", f"not sent: {error}; give finite numbers", request_id
        ) from error
    headers["Content-Type"] = "application/json"
    return request | {"content": content}


def _as_list(value: Any) -> Any:
    """Arrays, also those of other libraries, and NumPy's numbers, wherever they stand in a body."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if hasattr(value, "__array__"):
        return np.asarray(value).tolist()
    raise TypeError(f"{type(value).__name__} is neither a number nor a text")
