"""`rl_service.serving.client` with `await`."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import numpy.typing as npt

from rl_service.serving import calls
from rl_service.serving.calls import Action, ActionBatch, PolicyServiceError


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
