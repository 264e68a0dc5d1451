"""The versions of policies that a replica holds in memory."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from custom_models.configs import LLMPolicyConfig
from rl_service.common.errors import BundleError
from rl_service.policies.bundle import BundledPolicy, load_bundle
from rl_service.policies.critic import CriticRunner, critic_of
from rl_service.serving.batching import Batcher
from rl_service.serving.limits import Limits
from rl_service.serving.memory import Memory
from rl_service.serving.metrics import ServingMetrics
from rl_service.serving.sources import PolicySource

T = TypeVar("T")
Key = tuple[str, int]
"""Name and version."""
_PROBE_INTERVAL_S = 2.0
"""So that nobody keeps a replica busy by asking for its health."""
_PROBE_WAIT_S = 0.02
"""A net that is busy for longer is in good health, unless ..."""
_STUCK_S = 120.0
"""... it has answered nothing for this long."""
_QUICK_WORK = 2e8
"""Multiplications of a batch in the event loop: about 20 ms."""


@dataclass
class Loaded:
    """One version of a policy, ready to act."""

    name: str
    version: int
    policy: BundledPolicy
    batcher: Batcher
    memory: Memory
    critic: CriticRunner | None = None
    """None until somebody asks for a value."""
    probe: asyncio.Task[None] | None = None
    """A pass that was begun to see whether it works."""
    probed_at: float = 0.0

    @property
    def action_ndim(self) -> int:
        """Dimensions of one action in the policy's units."""
        return 0 if self.policy.action_spec.kind == "discrete" else 1


class Loader:
    """Reads bundles, checks them, and unloads those that were not asked for lately.

    Args:
        limits: how many stay loaded, and how many rows go through a net together.
        metrics: where it counts.
        in_use: tells which versions take traffic now: they are the last to be unloaded.
    """

    def __init__(
        self, limits: Limits, metrics: ServingMetrics, in_use: Callable[[], Collection[Key]]
    ) -> None:
        self._limits, self._metrics, self._in_use = limits, metrics, in_use
        self._loaded: OrderedDict[Key, Loaded] = OrderedDict()
        self._loading: dict[Key, asyncio.Task[Loaded]] = {}
        self._files = ThreadPoolExecutor(2, thread_name_prefix="bundles")
        self.long_passes: Executor = ThreadPoolExecutor(1, thread_name_prefix="language-model")
        """Where the passes of large nets run, one after another."""
        self.large_batches = ThreadPoolExecutor(1, thread_name_prefix="large-batches")
        """Of small nets, which do not wait for large ones."""

    @property
    def in_memory(self) -> list[Key]:
        """What is loaded, the least recently used first."""
        return list(self._loaded)

    async def load(self, source: PolicySource, version: int) -> Loaded:
        """A version, loaded now if it was not; the least recently used one makes room.

        Raises:
            RLServiceError: if it cannot be loaded, or does not pass its checks.
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

    async def critic(self, source: PolicySource, loaded: Loaded) -> CriticRunner:
        """The critic of a version, read when it is asked for the first time.

        Raises:
            BundleError: if the bundle holds none that can be asked.
        """
        if loaded.critic is None:
            loaded.critic = await self.in_thread(_read_critic, source, loaded.version)
        return loaded.critic

    async def check_health(self) -> None:
        """Runs each loaded policy once, unless it has answered in the last seconds.

        It does not wait for policies that are busy: their answer counts the next time.

        Raises:
            BundleError: if an answer is not finite, or none came for minutes.
        """
        now = time.monotonic()
        probes = []
        for loaded in self._loaded.values():
            if loaded.probe is None and now - loaded.batcher.last_pass_at > _PROBE_INTERVAL_S:
                loaded.probe, loaded.probed_at = asyncio.create_task(_probe(loaded)), now
            if loaded.probe is not None:
                probes.append((loaded, loaded.probe))
        if probes:
            await asyncio.wait([probe for _, probe in probes], timeout=_PROBE_WAIT_S)
        for loaded, probe in probes:
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
        policy = await self.in_thread(_read_bundle, source, version)
        takes_long = isinstance(policy.spec.model, LLMPolicyConfig)
        num_weights = sum(p.numel() for p in policy.actor.parameters())
        loaded = Loaded(
            source.name,
            version,
            policy,
            Batcher(
                policy,
                self._limits.max_batch_rows,
                self.long_passes if takes_long else self.large_batches,
                0 if takes_long else int(_QUICK_WORK / num_weights),
                self._metrics.batch_rows.labels(source.name).observe,
            ),
            Memory(policy, policy.actor.context_length - 1),
        )
        await _probe(loaded)
        self._loaded[source.name, version] = loaded
        while len(self._loaded) > self._limits.max_loaded_policies:
            del self._loaded[self._least_needed()]
        return loaded

    def _least_needed(self) -> Key:
        """The least recently used version that takes no traffic, or else the least used one."""
        in_use = self._in_use()
        idle = [key for key in self.in_memory[:-1] if key not in in_use]
        return idle[0] if idle else next(iter(self._loaded))


def cannot_be_read_now(error: BundleError) -> bool:
    """Whether the file system failed, and not the bundle."""
    return isinstance(error.__cause__, OSError)


async def _probe(loaded: Loaded) -> None:
    """A real pass over a recorded observation."""
    spec = loaded.policy.spec
    row = np.array(spec.parity.observations[:1], np.float32)
    obs = row.reshape(1, *spec.observation_space.shape)
    actions = await loaded.batcher.act(obs, deterministic=True, history=None)
    if not np.isfinite(actions.dist_inputs).all():
        raise BundleError(
            f"policy {loaded.name}:{loaded.version} answers a recorded observation with NaN; "
            f"export it again"
        )


def _read_critic(source: PolicySource, version: int) -> CriticRunner:
    return critic_of(source.fetch(version))


def _read_bundle(source: PolicySource, version: int) -> BundledPolicy:
    return load_bundle(source.fetch(version), source.base_model)
