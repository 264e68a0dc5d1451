"""Answers requests: which version is asked, and what happens if it cannot answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np

from custom_models.history import History
from custom_models.spaces import FloatArray
from rl_service.common.errors import BundleError, ObservationError, RegistryError
from rl_service.common.text import nearest, one_line
from rl_service.policies.critic import CriticRunner
from rl_service.policies.runner import Actions
from rl_service.serving.errors import RequestError
from rl_service.serving.limits import Limits
from rl_service.serving.loading import Loaded, cannot_be_read_now
from rl_service.serving.memory import Memory
from rl_service.serving.metrics import ServingMetrics
from rl_service.serving.rollouts import Rollouts
from rl_service.serving.shared import Shared
from rl_service.serving.sources import PolicySource

_CRITIC_ROWS = 64
"""Of one pass: a row is a sequence of many tokens."""
_QUICK_HISTORIES = 16
"""Of a batch; to read more takes the event loop milliseconds."""


Asked = TypeVar("Asked")
Recalled = TypeVar("Recalled")


class NoFiniteAnswer(Exception):
    """A net has answered with NaN: it is broken, or the observation is like no other."""


class Engine:
    """Chooses the version for a request, and asks it.

    Args:
        sources: of the served policies.
        limits: how many stay loaded, and how many rows go through a net together.
        shared: what the replicas agree on.
        metrics: where it counts.
        canary_share: see `Rollouts`.
    """

    def __init__(
        self,
        sources: Iterable[PolicySource],
        limits: Limits,
        shared: Shared,
        metrics: ServingMetrics,
        canary_share: float = 0.0,
    ) -> None:
        self.rollouts = Rollouts(sources, limits, shared, metrics, canary_share)
        self._served, self.loader = self.rollouts.served, self.rollouts.loader
        self._metrics = metrics

    @property
    def names(self) -> list[str]:
        return list(self._served)

    def check_name(self, name: str) -> str:
        """Raises RequestError for a policy that is not served."""
        if name in self._served:
            return name
        near = nearest(name[:100], self._served)
        hint = f"did you mean {near}? " if near else ""
        raise RequestError(
            404, "unknown_policy", f"no such policy; {hint}served: {', '.join(self._served)}"
        )

    async def stable(self, name: str) -> Loaded:
        """The version that takes the traffic."""
        return await self.load(name, self._served[name].stable)

    async def pinned(self, name: str, version: int) -> Loaded:
        """A version that the request asks for.

        Raises:
            RequestError: if there is none of that number, or it cannot be loaded.
        """
        served = self._served[name]
        if (name, version) not in self.loader.in_memory:
            try:
                known = await self.loader.in_thread(served.source.knows, version)
            except RegistryError as error:
                raise _unavailable(name, version) from error
            if not known:
                raise RequestError(
                    404, "unknown_version", f"policy {name} has no version {version}"
                )
            if version in served.rejected:
                raise _rejected(name, version)
        try:
            return await self._load_for_request(name, version)
        except BundleError as error:
            served.rejected.add(version)
            raise _rejected(name, version) from error

    async def chosen(self, name: str) -> Loaded:
        """The version for the next request: the stable one, or its canary in turn."""
        served = self._served[name]
        canary = served.canary
        if canary is not None and canary.takes_next():
            return await self.load(name, canary.version)
        return await self.stable(name)

    async def of_session(self, name: str, version: int) -> Loaded:
        """The version of a session that has not asked for one: unless it was withdrawn since."""
        if version in self._served[name].rejected:
            return await self.stable(name)
        try:
            return await self._load_for_request(name, version)
        except BundleError:  # its files were damaged meanwhile
            return await self.stable(name)

    async def _load_for_request(self, name: str, version: int) -> Loaded:
        """As `load`; where only reading fails, the client is told to come again."""
        try:
            return await self.load(name, version)
        except RegistryError as error:
            raise _unavailable(name, version) from error
        except BundleError as error:
            if cannot_be_read_now(error):
                raise _unavailable(name, version) from error
            raise

    async def act(
        self,
        loaded: Loaded,
        obs: FloatArray,
        *,
        deterministic: bool,
        remember: Callable[[Loaded], History | None],
        pinned: bool = False,
    ) -> tuple[Loaded, Actions]:
        """Actions, and the version that gave them: the stable one where a canary fails.

        Args:
            loaded: the version to ask.
            obs: (B, *shape).
            deterministic: as of `PolicyRunner.act`.
            remember: gives the history that a version reads.
            pinned: the client wants that version and no other: it is no part of a trial.
        """
        served = self._served[loaded.name]
        canary = None if pinned else served.canary
        started = time.perf_counter()
        try:
            actions = await self._ask(loaded, obs, deterministic, remember)
        except (ObservationError, RequestError):
            raise
        except Exception as error:
            if canary is None or canary.version != loaded.version:
                raise _refused(error) from error
            stable = await self.stable(loaded.name)
            try:
                actions = await self._ask(stable, obs, deterministic, remember)
            except NoFiniteAnswer as same:  # then it is no fault of the new version
                raise _refused(same) from same
            canary.failed()
            await self.rollouts.judge(served, one_line(error))
            return stable, actions
        if not pinned:
            served.answered(loaded.version, time.perf_counter() - started)
            await self.rollouts.judge(served, "its answers took too long")
        return loaded, actions

    async def values(
        self, loaded: Loaded, remember: Callable[[Memory], History], timesteps: list[int]
    ) -> list[float]:
        """What the critic of a version expects from here on, (B,); see `CriticRunner.values`.

        Args:
            loaded: the version.
            remember: gives the history that fits a memory.
            timesteps: (B,) env steps before.

        Raises:
            RequestError: 422 if the bundle holds no critic that can be asked.
        """
        critic = await self._critic(loaded)
        memory = Memory(loaded.policy, critic.context_length - 1)
        history = await self._recall(remember, memory, len(timesteps))
        loop = asyncio.get_running_loop()
        steps = np.array(timesteps, np.int64)
        values: list[float] = []
        for first in range(0, len(steps), _CRITIC_ROWS):
            rows = slice(first, first + _CRITIC_ROWS)
            found = await loop.run_in_executor(
                self.loader.long_passes, critic.values, history.rows(rows), steps[rows]
            )
            if not np.isfinite(found).all():
                raise _refused(NoFiniteAnswer())
            values += found.tolist()
        return values

    async def keeper(self, loaded: Loaded, with_value: bool) -> Memory:
        """The memory of a session: as many steps as the actor reads, and the critic if asked."""
        if not with_value:
            return loaded.memory
        needed = (await self._critic(loaded)).context_length - 1
        return Memory(loaded.policy, max(loaded.memory.num_earlier, needed))

    async def _critic(self, loaded: Loaded) -> CriticRunner:
        try:
            return await self.loader.critic(self._served[loaded.name].source, loaded)
        except BundleError as error:
            raise RequestError(
                422,
                "no_value",
                f"policy {loaded.name}:{loaded.version} has no critic that can be asked; send "
                f"value=false",
            ) from error

    async def load(self, name: str, version: int) -> Loaded:
        """See `Loader.load`."""
        return await self.loader.load(self._served[name].source, version)

    async def _ask(
        self,
        loaded: Loaded,
        obs: FloatArray,
        deterministic: bool,
        remember: Callable[[Loaded], History | None],
    ) -> Actions:
        num_histories = len(obs) if loaded.memory.num_earlier else 0
        history = await self._recall(remember, loaded, num_histories)
        actions = await loaded.batcher.act(obs, deterministic=deterministic, history=history)
        if not np.isfinite(actions.log_prob).all():
            raise NoFiniteAnswer(f"policy {loaded.name}:{loaded.version} answers with NaN")
        self._metrics.actions.labels(loaded.name, str(loaded.version)).inc(len(obs))
        return actions

    async def _recall(
        self, remember: Callable[[Asked], Recalled], asked: Asked, num_histories: int
    ) -> Recalled:
        """Histories of a batch, without keeping other requests waiting."""
        if num_histories <= _QUICK_HISTORIES:
            return remember(asked)
        # Not where bundles are read: a registry that does not answer would keep requests waiting.
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.loader.large_batches, remember, asked)


def _unavailable(name: str, version: int) -> RequestError:
    return RequestError(
        503, "version_unavailable", f"version {version} of {name} cannot be read now", 2
    )


def _refused(error: Exception) -> Exception:
    """What a client is told of a failed pass."""
    if isinstance(error, NoFiniteAnswer):
        return RequestError(
            422,
            "invalid_observation",
            "the policy has no finite answer to this observation; send one as the environment "
            "gives it",
        )
    return error


def _rejected(name: str, version: int) -> RequestError:
    return RequestError(
        409, "rejected_version", f"version {version} of {name} failed its checks; ask for another"
    )
