"""A Python client of the service.

    with PolicyClient("http://127.0.0.1:8000") as client:
        client.act("lunarlander", observation).action
        with client.session("lunarlander") as session:
            session.act(observation)

`AsyncPolicyClient` is the same with `await`. Needs httpx and NumPy, neither torch nor Ray.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Any

import httpx
import numpy.typing as npt

from rl_service.serving import calls
from rl_service.serving.calls import Action, ActionBatch, PolicyServiceError

__all__ = [
    "Action",
    "ActionBatch",
    "AsyncPolicyClient",
    "AsyncSession",
    "PolicyClient",
    "PolicyServiceError",
    "Session",
]


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
            base_url=url, headers=calls.headers(token), timeout=timeout_s, transport=transport
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
        found: list[dict[str, Any]] = self._send(calls.list_policies())["policies"]
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
            history: `{"observations": ..., "actions": ...}`, lists or arrays: the steps before,
                oldest first, the actions as `Action.policy_action` gave them.
            value: also ask the critic; `history` should then begin with the episode.

        Raises:
            PolicyServiceError: if the service refuses it or does not answer in time, or if a number
                is not finite.
        """
        call = calls.act(policy, "observation", observation, deterministic, history, value)
        return calls.read_action(self._send(call))

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
        call = calls.act(policy, "observations", observations, deterministic, history, value)
        return calls.read_action_batch(self._send(call))

    def session(self, policy: str, *, value: bool = False) -> Session:
        """An episode that the service remembers; a context manager that closes it.

        Args:
            policy: `name`, or `name:version`.
            value: each reply also tells what the critic expects from there on.
        """
        opened = self._send(calls.open_session(policy, value))
        return Session(self, opened["session"])

    def _send(self, call: calls.Call) -> dict[str, Any]:
        attempts = calls.attempts(call, self._patience_s)
        pause_s = next(attempts)
        while True:
            time.sleep(pause_s)
            try:
                outcome: httpx.Response | httpx.TransportError = self._http.request(
                    **call.http_arguments
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
        call = calls.session_act(self.id, observation, reward, deterministic)
        return calls.read_action(self._client._send(call))

    def close(self) -> None:
        """Lets the service forget it; it may have done so already."""
        try:
            self._client._send(calls.close_session(self.id))
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
            base_url=url, headers=calls.headers(token), timeout=timeout_s, transport=transport
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
        found: list[dict[str, Any]] = (await self._send(calls.list_policies()))["policies"]
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
        call = calls.act(policy, "observation", observation, deterministic, history, value)
        return calls.read_action(await self._send(call))

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
        call = calls.act(policy, "observations", observations, deterministic, history, value)
        return calls.read_action_batch(await self._send(call))

    def session(self, policy: str, *, value: bool = False) -> AsyncSession:
        """See `PolicyClient`; it is opened by `async with`."""
        return AsyncSession(self, policy, value)

    async def _send(self, call: calls.Call) -> dict[str, Any]:
        attempts = calls.attempts(call, self._patience_s)
        pause_s = next(attempts)
        while True:
            await asyncio.sleep(pause_s)
            try:
                outcome: httpx.Response | httpx.TransportError = await self._http.request(
                    **call.http_arguments
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
        opened = await self._client._send(calls.open_session(self._policy, self._value))
        self.id = opened["session"]
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._client._send(calls.close_session(self.id))
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
        call = calls.session_act(self.id, observation, reward, deterministic)
        return calls.read_action(await self._client._send(call))
