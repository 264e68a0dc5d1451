"""The policies that a replica has loaded, and which version of each answers a request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from custom_models.configs import LLMPolicyConfig
from custom_models.history import History
from custom_models.spaces import FloatArray
from rl_service.config.text import nearest, one_line
from rl_service.errors import BundleError, ObservationError, RegistryError
from rl_service.policies.bundle import BundledPolicy, load_bundle
from rl_service.policies.critic import CriticRunner, critic_of
from rl_service.policies.runner import Actions
from rl_service.serving.batching import Batcher
from rl_service.serving.canary import Canary
from rl_service.serving.errors import RequestError
from rl_service.serving.limits import Limits
from rl_service.serving.logs import LOGGER
from rl_service.serving.memory import Memory
from rl_service.serving.metrics import ServingMetrics
from rl_service.serving.shared import Shared
from rl_service.serving.sources import PolicySource

_logger = logging.getLogger(LOGGER)
T = TypeVar("T")
_PROBE_INTERVAL_S = 2.0
"""So that nobody keeps a replica busy by asking for its health."""
_CRITIC_ROWS = 64
"""Of one pass: a row is a sequence of many tokens."""


class NoFiniteAnswer(Exception):
    """A net has answered with NaN: it is broken, or the observation is like no other."""


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

    @property
    def action_ndim(self) -> int:
        """Dimensions of one action in the policy's units."""
        return 0 if self.policy.action_spec.kind == "discrete" else 1


@dataclass
class _Served:
    """A name in the routes."""

    source: PolicySource
    stable: int = 0
    canary: Canary | None = None
    wanted: int = 0
    rejected: set[int] = field(default_factory=set)
    proven: list[int] = field(default_factory=list)
    """Versions that have taken the traffic, the last one last: a rollback to one needs no
    trial."""
    last_problem: str = ""


class Engine:
    """Loads, chooses, asks and replaces policies.

    Args:
        sources: of the served policies.
        limits: how many stay loaded, and how many rows go through a net together.
        shared: what the replicas agree on.
        metrics: where it counts.
        canary_share: of the requests that a new version takes before it takes all of them; 0
            moves them at once.
    """

    def __init__(
        self,
        sources: Iterable[PolicySource],
        limits: Limits,
        shared: Shared,
        metrics: ServingMetrics,
        canary_share: float = 0.0,
    ) -> None:
        self._served = {source.name: _Served(source) for source in sources}
        self._limits, self._shared, self._metrics = limits, shared, metrics
        self._canary_share = canary_share
        self._loaded: OrderedDict[tuple[str, int], Loaded] = OrderedDict()
        self._loading: dict[tuple[str, int], asyncio.Task[Loaded]] = {}
        self._files = ThreadPoolExecutor(2, thread_name_prefix="bundles")
        self._long_passes = ThreadPoolExecutor(1, thread_name_prefix="language-model")

    @property
    def names(self) -> list[str]:
        return list(self._served)

    async def start(self) -> None:
        """Loads each policy: the version that the other replicas serve, else the wanted one.

        Raises:
            RLServiceError: if one cannot be loaded; the service has nothing else to serve.
        """
        for served in self._served.values():
            known = await self._shared.rollout(served.source.name)
            served.rejected = set(known.rejected)
            served.wanted = await self._in_thread(served.source.wanted)
            version = known.stable or served.wanted
            await self.load(served.source.name, version)
            await self._move_to(served, version)

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
        if (name, version) not in self._loaded:
            try:
                known = await self._in_thread(served.source.knows, version)
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
        """The version of a session: the one it began with, unless that was withdrawn."""
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
            if _cannot_be_read_now(error):
                raise _unavailable(name, version) from error
            raise

    async def act(
        self,
        loaded: Loaded,
        obs: FloatArray,
        *,
        deterministic: bool,
        remember: Callable[[Loaded], History | None],
    ) -> tuple[Loaded, Actions]:
        """Actions, and the version that gave them: the stable one where a canary fails.

        Args:
            loaded: the version to ask.
            obs: (B, *shape).
            deterministic: as of `PolicyRunner.act`.
            remember: gives the history that a version reads.
        """
        canary = self._served[loaded.name].canary
        started = time.perf_counter()
        try:
            actions = await self._ask(loaded, obs, deterministic, remember(loaded))
        except (ObservationError, RequestError):
            raise
        except Exception as error:
            if canary is None or canary.version != loaded.version:
                raise _refused(error) from error
            stable = await self.stable(loaded.name)
            try:
                actions = await self._ask(stable, obs, deterministic, remember(stable))
            except NoFiniteAnswer as same:  # then it is no fault of the new version
                raise _refused(same) from same
            canary.failed()
            await self._judge(self._served[loaded.name], one_line(error))
            return stable, actions
        if canary is not None:
            canary.answered(loaded.version, time.perf_counter() - started)
            await self._judge(self._served[loaded.name], "its answers took too long")
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
        history = remember(Memory(loaded.policy, critic.context_length - 1))
        loop = asyncio.get_running_loop()
        steps = np.array(timesteps, np.int64)
        values: list[float] = []
        for first in range(0, len(steps), _CRITIC_ROWS):
            rows = slice(first, first + _CRITIC_ROWS)
            found = await loop.run_in_executor(
                self._long_passes, critic.values, history.rows(rows), steps[rows]
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
        if loaded.critic is None:
            source = self._served[loaded.name].source
            try:
                loaded.critic = await self._in_thread(_read_critic, source, loaded.version)
            except BundleError as error:
                raise RequestError(
                    422,
                    "no_value",
                    f"policy {loaded.name}:{loaded.version} has no critic that can be asked; send "
                    f"value=false",
                ) from error
        return loaded.critic

    async def check_health(self) -> None:
        """Runs each loaded policy once, unless it has answered in the last seconds.

        Raises:
            BundleError: if an answer is not finite.
        """
        for loaded in list(self._loaded.values()):
            if time.monotonic() - loaded.batcher.last_pass_at > _PROBE_INTERVAL_S:
                await self._probe(loaded)

    async def watch_once(self) -> None:
        """Looks for versions that are wanted now, and moves to them if they pass."""
        for served in self._served.values():
            try:
                await self._follow(served)
            except Exception as error:  # the registry may be away for a while
                self._log_once(served, "watch_failed", one_line(error))

    async def load(self, name: str, version: int) -> Loaded:
        """A version, loaded now if it was not; the least recently used one makes room.

        Raises:
            RLServiceError: if it cannot be loaded, or does not pass its checks.
        """
        key = (name, version)
        loaded = self._loaded.get(key)
        if loaded is not None:
            self._loaded.move_to_end(key)
            return loaded
        if key not in self._loading:
            self._loading[key] = asyncio.create_task(self._load(name, version))
        try:
            return await asyncio.shield(self._loading[key])
        finally:
            if key in self._loading and self._loading[key].done():
                del self._loading[key]

    async def _load(self, name: str, version: int) -> Loaded:
        source = self._served[name].source
        policy = await self._in_thread(_read_bundle, source, version)
        takes_long = isinstance(policy.spec.model, LLMPolicyConfig)
        loaded = Loaded(
            name,
            version,
            policy,
            Batcher(
                policy,
                self._limits.max_batch_rows,
                self._long_passes if takes_long else None,
                self._metrics.batch_rows.labels(name).observe,
            ),
            Memory(policy, policy.actor.context_length - 1),
        )
        await self._probe(loaded)
        self._loaded[name, version] = loaded
        while len(self._loaded) > self._limits.max_loaded_policies:
            del self._loaded[self._least_needed()]
        return loaded

    def _least_needed(self) -> tuple[str, int]:
        """The least recently used version that takes no traffic, or else the least used one."""
        needed = {(name, served.stable) for name, served in self._served.items()}
        needed |= {
            (name, served.canary.version)
            for name, served in self._served.items()
            if served.canary is not None
        }
        idle = [key for key in list(self._loaded)[:-1] if key not in needed]
        return idle[0] if idle else next(iter(self._loaded))

    async def _follow(self, served: _Served) -> None:
        name = served.source.name
        wanted = await self._in_thread(served.source.wanted)
        if wanted != served.wanted:
            served.wanted = wanted
            if wanted in served.rejected:  # somebody promotes it again
                served.rejected.discard(wanted)
                await self._shared.forgive(name, wanted)
        known = await self._shared.rollout(name)
        served.rejected |= set(known.rejected)
        if served.stable in served.rejected:  # it passed here, and failed elsewhere
            good = [version for version in served.proven if version not in served.rejected]
            if good:
                await self.load(name, good[-1])
                await self._move_to(served, good[-1])
        canary = served.canary
        if canary is not None and (wanted != canary.version or canary.version in served.rejected):
            served.canary = canary = None
        if wanted == served.stable or canary is not None or wanted in served.rejected:
            return
        if wanted in served.proven or known.stable == wanted:  # or another replica has tried it
            await self.load(name, wanted)
            await self._move_to(served, wanted)
            return
        try:
            loaded = await self.load(name, wanted)
            _check_same_spaces(loaded, await self.stable(name))
        except BundleError as error:
            if _cannot_be_read_now(error):
                raise
            await self._reject(served, wanted, "check", one_line(error))
            return
        if self._canary_share:
            served.canary = Canary(wanted, self._canary_share)
            _logger.info("canary_started", extra={"fields": {"policy": name, "version": wanted}})
        else:
            await self._move_to(served, wanted)

    async def _judge(self, served: _Served, problem: str) -> None:
        canary = served.canary
        if canary is None:
            return
        verdict = canary.verdict()
        if verdict == "running":
            return
        served.canary = None
        if verdict == "passed":
            await self._move_to(served, canary.version)
        else:
            await self._reject(served, canary.version, verdict, problem)

    async def _move_to(self, served: _Served, version: int) -> None:
        served.stable, served.last_problem = version, ""
        served.proven = [each for each in served.proven if each != version] + [version]
        await self._shared.set_stable(served.source.name, version)
        self._metrics.version.labels(served.source.name).set(version)
        fields = {"policy": served.source.name, "version": version}
        _logger.info("version_serves", extra={"fields": fields})

    async def _reject(self, served: _Served, version: int, reason: str, problem: str) -> None:
        served.rejected.add(version)
        name = served.source.name
        self._metrics.rejected.labels(name, reason).inc()
        fields = {"policy": name, "version": version, "reason": reason, "problem": problem}
        _logger.error("version_rejected", extra={"fields": {**fields, "serves": served.stable}})
        if await self._shared.reject(name, version):
            await self._in_thread(served.source.give_up, version, served.stable)

    async def _ask(
        self, loaded: Loaded, obs: FloatArray, deterministic: bool, history: History | None
    ) -> Actions:
        actions = await loaded.batcher.act(obs, deterministic=deterministic, history=history)
        if not np.isfinite(actions.log_prob).all():
            raise NoFiniteAnswer(f"policy {loaded.name}:{loaded.version} answers with NaN")
        self._metrics.actions.labels(loaded.name, str(loaded.version)).inc(len(obs))
        return actions

    async def _probe(self, loaded: Loaded) -> None:
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

    def _log_once(self, served: _Served, event: str, problem: str) -> None:
        if problem != served.last_problem:
            served.last_problem = problem
            fields = {"policy": served.source.name, "problem": problem}
            _logger.error(event, extra={"fields": fields})

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._files, function, *arguments)


def _read_critic(source: PolicySource, version: int) -> CriticRunner:
    return critic_of(source.fetch(version))


def _read_bundle(source: PolicySource, version: int) -> BundledPolicy:
    return load_bundle(source.fetch(version))


def _cannot_be_read_now(error: BundleError) -> bool:
    """Whether the file system failed, and not the bundle."""
    return isinstance(error.__cause__, OSError)


def _unavailable(name: str, version: int) -> RequestError:
    return RequestError(
        503, "version_unavailable", f"version {version} of {name} cannot be read now", 2
    )


def _check_same_spaces(new: Loaded, old: Loaded) -> None:
    """Clients send and receive what they did before."""
    theirs, ours = new.policy.spec, old.policy.spec
    if (theirs.observation_space.shape, theirs.action_space) != (
        ours.observation_space.shape,
        ours.action_space,
    ):
        raise BundleError(
            f"version {new.version} has other observations or actions than version {old.version}; "
            f"serve it under another name"
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
