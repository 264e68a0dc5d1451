"""The versions of policies that a replica holds in memory."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from custom_models.history import History
from custom_models.spaces import FloatArray
from rl_service.common.errors import BundleError, RegistryError
from rl_service.policies.bundle import BundledPolicy, load_bundle
from rl_service.policies.runner import CriticRunner, critic_of
from rl_service.serving.batching import Batcher
from rl_service.serving.inputs import Body, Limits, act_body, session_act_body
from rl_service.serving.refusals import NoFiniteAnswer, RequestError
from rl_service.serving.shared import ServingMetrics
from rl_service.serving.sources import PolicySource

T = TypeVar("T")
Key = tuple[str, int]
"""Name and version."""
Recall = Callable[[int], History | None]
"""Gives a version the K-1 steps before each observation; None if there are none, or K is 1."""

_PROBE_INTERVAL_S = 2.0
"""Asking for its health more often costs a replica nothing."""
_PROBE_WAIT_S = 0.02
"""A net that is busy for longer is in good health, unless ..."""
_STUCK_S = 120.0
"""... it has answered nothing for this long."""
_QUICK_WORK = 2e8
"""Multiplications of a batch in the event loop: about 20 ms."""
_QUICK_ROWS = 16
"""Histories or observations of many parts; reading more takes the event loop milliseconds."""
_CRITIC_ROWS = 64
"""Of one pass: a row is a sequence of many tokens."""


@dataclass
class Loaded:
    """One version of a policy, ready to act."""

    source: PolicySource
    version: int
    policy: BundledPolicy
    batcher: Batcher
    act_body: type[Body]
    session_act_body: type[Body]
    critic: CriticRunner | None = None
    """None until a request asks for a value."""
    probe: asyncio.Task[None] | None = None
    """A pass that was begun to see whether it works."""
    probed_at: float = 0.0

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def num_earlier(self) -> int:
        """K-1, steps before an observation that the actor reads."""
        return self.policy.actor.context_length - 1

    @property
    def description(self) -> dict[str, Any]:
        """What a client must know of it: spaces, version, score."""
        spec = self.policy.spec
        return {
            "policy": self.name,
            "version": self.version,
            "env": spec.env.id,
            "max_episode_steps": spec.env.max_episode_steps,
            "model": spec.model.name,
            "observation_space": spec.observation_space.model_dump(),
            "action_space": spec.action_space.model_dump(),
            "context_length": self.policy.actor.context_length,
            "episode_return_mean": spec.evaluation.get("episode_return_mean"),
            "weights_sha256": spec.weights_sha256,
        }


class Loader:
    """Reads bundles, checks them, and unloads those that were not asked for lately.

    Args:
        limits: how many stay loaded, how many rows go through a net together, what bodies hold.
        metrics: where it counts.
    """

    def __init__(self, limits: Limits, metrics: ServingMetrics) -> None:
        self._limits, self._metrics = limits, metrics
        self.in_use: dict[str, set[int]] = {}
        """The versions of each policy that take traffic now: they are the last to be unloaded."""
        self._loaded: OrderedDict[Key, Loaded] = OrderedDict()
        self._loading: dict[Key, asyncio.Task[Loaded]] = {}
        self._files = ThreadPoolExecutor(2, thread_name_prefix="bundles")
        self._long_passes = ThreadPoolExecutor(1, thread_name_prefix="language-model")
        """Where the passes of large nets run, one after another."""
        self._large_batches = ThreadPoolExecutor(1, thread_name_prefix="large-batches")
        """Of small nets, which do not wait for large ones."""

    @property
    def in_memory(self) -> list[Key]:
        """What is loaded, the least recently used first."""
        return list(self._loaded)

    async def load(self, source: PolicySource, version: int) -> Loaded:
        """A version, loaded now if it was not; the least recently used one makes room.

        Raises:
            RegistryError: if it cannot be read now.
            BundleError: if it does not pass its checks.
        """
        key = (source.name, version)
        loaded = self._loaded.get(key)
        if loaded is not None:
            self._loaded.move_to_end(key)
            return loaded
        if key not in self._loading:
            self._loading[key] = asyncio.create_task(self._load(source, version))
        try:
            return await asyncio.shield(self._loading[key])
        finally:
            if key in self._loading and self._loading[key].done():
                del self._loading[key]

    async def recall(self, recall: Recall, num_earlier: int, num_histories: int) -> History | None:
        """Histories of a batch."""
        return await self.apart(num_histories, recall, num_earlier)

    async def apart(self, num_rows: int, function: Callable[..., T], *arguments: object) -> T:
        """What reads rows of a batch one by one; many do not keep other requests waiting."""
        if num_rows <= _QUICK_ROWS:
            return function(*arguments)
        # Not where bundles are read: a registry that does not answer would keep requests waiting.
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._large_batches, function, *arguments)

    async def critic(self, loaded: Loaded) -> CriticRunner:
        """The critic of a version, read when it is asked for the first time.

        Raises:
            RequestError: 422 if the bundle holds none that can be asked.
        """
        if loaded.critic is None:
            try:
                loaded.critic = await self.in_thread(
                    lambda: critic_of(loaded.source.fetch(loaded.version))
                )
            except BundleError as error:
                raise RequestError(
                    422,
                    "no_value",
                    f"policy {loaded.name}:{loaded.version} has no critic that can be asked; send "
                    f"value=false",
                ) from error
        return loaded.critic

    async def values(
        self, loaded: Loaded, obs: FloatArray, recall: Recall, timesteps: list[int]
    ) -> list[float]:
        """What the critic of a version expects from here on, (B,); see `CriticRunner.values`.

        Args:
            loaded: the version.
            obs: (B, *shape).
            recall: gives the steps before.
            timesteps: (B,) env steps before.

        Raises:
            RequestError: 422 if the bundle holds no critic that can be asked, or if the critic's
                answer is not finite.
        """
        critic = await self.critic(loaded)
        history = await self.recall(recall, critic.context_length - 1, len(obs))
        if history is None:
            flat = obs.reshape(len(obs), -1)
            history = History.first_steps(flat, critic.context_length, loaded.policy.action_spec)
        loop = asyncio.get_running_loop()
        steps = np.array(timesteps, np.int64)
        values: list[float] = []
        for first in range(0, len(steps), _CRITIC_ROWS):
            rows = slice(first, first + _CRITIC_ROWS)
            found = await loop.run_in_executor(
                self._long_passes, critic.values, history.rows(rows), steps[rows]
            )
            if not np.isfinite(found).all():
                raise NoFiniteAnswer
            values += found.tolist()
        return values

    async def check_health(self) -> None:
        """Runs each loaded policy once, unless it has answered in the last seconds.

        It does not wait for policies that are busy: their answer counts the next time.

        Raises:
            BundleError: if an answer is not finite, or none came for minutes.
        """
        now = time.monotonic()
        for loaded in self._loaded.values():
            if loaded.probe is None and now - loaded.batcher.last_pass_at > _PROBE_INTERVAL_S:
                loaded.probe, loaded.probed_at = asyncio.create_task(_probe(loaded)), now
        probes = {each.probe: each for each in self._loaded.values() if each.probe is not None}
        if probes:
            await asyncio.wait(probes, timeout=_PROBE_WAIT_S)
        for probe, loaded in probes.items():
            if probe.done():
                loaded.probe = None
                await probe
            elif now - max(loaded.probed_at, loaded.batcher.last_pass_at) > _STUCK_S:
                raise BundleError(
                    f"policy {loaded.name}:{loaded.version} has answered nothing for "
                    f"{_STUCK_S:.0f} s"
                )

    async def in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        """What reads files, or asks a registry, without keeping requests waiting."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._files, function, *arguments)

    async def _load(self, source: PolicySource, version: int) -> Loaded:
        try:
            policy = await self.in_thread(
                lambda: load_bundle(source.fetch(version), source.base_model)
            )
        except BundleError as error:
            if isinstance(error.__cause__, OSError):  # the file system failed, not the bundle
                raise RegistryError(str(error)) from error
            raise
        takes_long = policy.spec.model.has_language_model
        num_weights = sum(p.numel() for p in policy.actor.parameters())
        space, action_spec = policy.spec.observation_space, policy.action_spec
        loaded = Loaded(
            source,
            version,
            policy,
            Batcher(
                policy,
                self._limits.max_batch_rows,
                self._long_passes if takes_long else self._large_batches,
                0 if takes_long else int(_QUICK_WORK / num_weights),
                self._metrics.batch_rows.labels(source.name).observe,
            ),
            act_body(space, action_spec, self._limits.max_batch_size),
            session_act_body(space, action_spec),
        )
        await _probe(loaded)
        self._loaded[source.name, version] = loaded
        while len(self._loaded) > self._limits.max_loaded_policies:
            del self._loaded[self._least_needed()]
        return loaded

    def _least_needed(self) -> Key:
        """The least recently used version that takes no traffic, or else the least used one."""
        for name, version in self.in_memory[:-1]:
            if version not in self.in_use.get(name, ()):
                return name, version
        return next(iter(self._loaded))


async def _probe(loaded: Loaded) -> None:
    """A real pass over a recorded observation."""
    spec = loaded.policy.spec
    row = np.array(spec.parity.observations[:1], np.float32)
    obs = row.reshape(1, *spec.observed_space.row_shape)
    actions = await loaded.batcher.act(obs, deterministic=True, history=None)
    if not np.isfinite(actions.dist_inputs).all():
        raise BundleError(
            f"policy {loaded.name}:{loaded.version} answers a recorded observation with NaN; "
            f"export it again"
        )
