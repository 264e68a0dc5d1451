"""Which version of each policy takes the traffic: what is wanted, on trial, proven, rejected."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from rl_service.common.errors import BundleError
from rl_service.common.text import one_line
from rl_service.serving.limits import Limits
from rl_service.serving.loading import Key, Loaded, Loader, cannot_be_read_now
from rl_service.serving.logs import LOGGER
from rl_service.serving.metrics import ServingMetrics
from rl_service.serving.shared import Shared
from rl_service.serving.sources import PolicySource

_logger = logging.getLogger(LOGGER)
Verdict = Literal["running", "passed", "errors", "slow"]
MIN_REQUESTS = 100
"""That the new version must have answered before it may pass."""
MIN_SECONDS = 10.0
"""That it must have been on trial."""
MIN_COMPARED = 30
"""Requests of either version before their latencies are compared."""
REQUESTS_PER_ERROR = 100
"""A failure among so many requests ends the trial."""
KEPT_LATENCIES = 500
"""Of either version, the last ones."""
MAX_SLOWDOWN, ALLOWED_MS = 2.0, 5.0
"""Its median latency may be so many times that of the old version, and this much more."""


@dataclass
class Served:
    """A name in the routes."""

    source: PolicySource
    stable: int = 0
    canary: Canary | None = None
    wanted: int = 0
    """0 before the source was asked."""
    rejected: set[int] = field(default_factory=set)
    proven: list[int] = field(default_factory=list)
    """Versions that have taken the traffic, the last one last: a rollback to one needs no
    trial."""
    stable_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_LATENCIES))
    """Latencies of the stable version, for the next trial."""
    last_problem: str = ""

    def answered(self, version: int, seconds: float) -> None:
        """A version has answered a request that did not ask for that version by number."""
        if version == self.stable:
            self.stable_s.append(seconds)
        if self.canary is not None and version in (self.stable, self.canary.version):
            self.canary.answered(version, seconds)


class Rollouts:
    """Follows the sources: tries what they want, and moves the traffic or stays.

    Args:
        sources: of the served policies.
        limits: see `Loader`.
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
        canary_share: float,
    ) -> None:
        self.served = {source.name: Served(source) for source in sources}
        self.loader = Loader(limits, metrics, self._in_use)
        self._shared, self._metrics, self._canary_share = shared, metrics, canary_share

    async def start(self) -> None:
        """Loads each policy: the version that the other replicas serve, else the wanted one.

        Raises:
            RLServiceError: if one cannot be loaded; the service has nothing else to serve.
        """
        for served in self.served.values():
            known = await self._shared.rollout(served.source.name)
            served.rejected = set(known.rejected)
            if known.stable is None:
                served.wanted = await self.loader.in_thread(served.source.wanted)
            version = known.stable or served.wanted
            await self.loader.load(served.source, version)
            await self._move_to(served, version)

    async def watch_once(self) -> None:
        """Looks for versions that are wanted now, and moves to them if they pass."""
        for served in self.served.values():
            try:
                await self._follow(served)
            except Exception as error:  # the registry may be away for a while
                _log_once(served, "watch_failed", one_line(error))

    async def _follow(self, served: Served) -> None:
        name = served.source.name
        wanted = await self.loader.in_thread(served.source.wanted)
        before, served.wanted = served.wanted, wanted
        if before not in (0, wanted) and wanted in served.rejected:  # somebody promotes it again
            served.rejected.discard(wanted)
            await self._shared.forgive(name, wanted)
        known = await self._shared.rollout(name)
        served.rejected |= set(known.rejected)
        if served.stable in served.rejected:  # it passed here, and failed elsewhere
            await self._go_back(served)
        canary = served.canary
        if canary is not None and (wanted != canary.version or canary.version in served.rejected):
            served.canary = canary = None
        if wanted == served.stable or canary is not None or wanted in served.rejected:
            return
        if wanted in served.proven or known.stable == wanted:  # or another replica has tried it
            await self.loader.load(served.source, wanted)
            await self._move_to(served, wanted)
        else:
            await self._try(served, wanted)

    async def _go_back(self, served: Served) -> None:
        """To the last version that took the traffic and was not rejected since, if there is one."""
        good = [version for version in served.proven if version not in served.rejected]
        if good:
            await self.loader.load(served.source, good[-1])
            await self._move_to(served, good[-1])

    async def _try(self, served: Served, version: int) -> None:
        """Checks a new version, and gives it a share of the requests or all of them."""
        try:
            loaded = await self.loader.load(served.source, version)
            _check_same_spaces(loaded, await self.loader.load(served.source, served.stable))
        except BundleError as error:
            if cannot_be_read_now(error):
                raise
            await self._reject(served, version, "check", one_line(error))
            return
        if self._canary_share:
            fields = {"policy": served.source.name, "version": version}
            served.canary = Canary(version, self._canary_share, served.stable_s)
            _logger.info("canary_started", extra={"fields": fields})
        else:
            await self._move_to(served, version)

    async def judge(self, served: Served, problem: str) -> None:
        """Ends a trial if its verdict is known; `problem` goes into the log of a bad one."""
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

    async def _move_to(self, served: Served, version: int) -> None:
        served.stable, served.last_problem = version, ""
        served.stable_s.clear()
        served.proven = [each for each in served.proven if each != version] + [version]
        await self._shared.set_stable(served.source.name, version)
        self._metrics.version.labels(served.source.name).set(version)
        fields = {"policy": served.source.name, "version": version}
        _logger.info("version_serves", extra={"fields": fields})

    async def _reject(self, served: Served, version: int, reason: str, problem: str) -> None:
        served.rejected.add(version)
        name = served.source.name
        self._metrics.rejected.labels(name, reason).inc()
        fields = {"policy": name, "version": version, "reason": reason, "problem": problem}
        _logger.error("version_rejected", extra={"fields": {**fields, "serves": served.stable}})
        if await self._shared.reject(name, version):
            await self.loader.in_thread(served.source.give_up, version, served.stable)

    def _in_use(self) -> set[Key]:
        trials = [(name, served.canary) for name, served in self.served.items()]
        stable = {(name, served.stable) for name, served in self.served.items()}
        return stable | {(name, trial.version) for name, trial in trials if trial is not None}


def _log_once(served: Served, event: str, problem: str) -> None:
    if problem != served.last_problem:
        served.last_problem = problem
        fields = {"policy": served.source.name, "problem": problem}
        _logger.error(event, extra={"fields": fields})


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


class Canary:
    """Which requests a new version takes, and whether it has passed.

    Args:
        version: the new one.
        share: of the requests, above 0 and at most 1.
        before: latencies of the old version ahead of the trial, in seconds; they count where it
            answers too little during the trial, as with a share of 1.
        clock: seconds.
    """

    def __init__(
        self,
        version: int,
        share: float,
        before: Iterable[float] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.version = version
        self._share, self._clock = share, clock
        self._started_at = clock()
        self._due = 0.0
        self._num_requests = self._num_errors = 0
        self._before_s = list(before)
        self._old_s: deque[float] = deque(maxlen=KEPT_LATENCIES)
        self._new_s: deque[float] = deque(maxlen=KEPT_LATENCIES)

    def takes_next(self) -> bool:
        """Whether the next request goes to the new version: evenly spread, not by chance."""
        self._due += self._share
        if self._due < 1.0:
            return False
        self._due -= 1.0
        return True

    def answered(self, version: int, seconds: float) -> None:
        """The new version, or the old one, has answered a request."""
        if version == self.version:
            self._num_requests += 1
            self._new_s.append(seconds)
        else:
            self._old_s.append(seconds)

    def failed(self) -> None:
        """The new version has failed to answer."""
        self._num_requests += 1
        self._num_errors += 1

    def verdict(self) -> Verdict:
        if self._num_errors and self._num_errors * REQUESTS_PER_ERROR >= self._num_requests:
            return "errors"
        if self._is_slow():
            return "slow"
        long_enough = self._clock() - self._started_at >= MIN_SECONDS
        return "passed" if long_enough and self._num_requests >= MIN_REQUESTS else "running"

    def _is_slow(self) -> bool:
        old_s = self._old_s if len(self._old_s) >= MIN_COMPARED else self._before_s
        if min(len(old_s), len(self._new_s)) < MIN_COMPARED:
            return False
        return median(self._new_s) > MAX_SLOWDOWN * median(old_s) + ALLOWED_MS / 1000.0
