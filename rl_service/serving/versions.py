"""The versions of a served policy: which one answers, and which one takes over when."""

from __future__ import annotations

import logging
import time
from collections import deque

import numpy as np

from custom_models.spaces import FloatArray
from custom_models.text import one_line
from rl_service.common.errors import BundleError, ObservationError, RegistryError
from rl_service.policies.observing import Mask
from rl_service.policies.runner import Actions
from rl_service.serving.canary import KEPT_LATENCIES, Canary
from rl_service.serving.loading import Loaded, Loader, Recall
from rl_service.serving.refusals import NoFiniteAnswer, RequestError
from rl_service.serving.shared import KnownVersions, ServingMetrics, Shared
from rl_service.serving.sources import PolicySource

_logger = logging.getLogger("rl_service.serving")


class VersionRouter:
    """Chooses the version for each request to a policy, asks it, and follows its source.

    A version that the source wants takes over once it has passed its checks and its trial.

    Args:
        source: of the policy.
        loader: holds its versions.
        shared: what the replicas agree on.
        metrics: where it counts.
        canary_share: of the requests that a new version takes before it takes all of them; 0
            moves them at once.
    """

    def __init__(
        self,
        source: PolicySource,
        loader: Loader,
        shared: Shared,
        metrics: ServingMetrics,
        canary_share: float,
    ) -> None:
        self.name = source.name
        self._source, self._loader, self._shared = source, loader, shared
        self._metrics, self._canary_share = metrics, canary_share
        self._stable = 0
        self._canary: Canary | None = None
        self._wanted = 0
        """By the source; 0 before it was asked."""
        self._rejected: set[int] = set()
        self._proven: list[int] = []
        """Versions that have taken the traffic, in order: a rollback to one needs no trial."""
        self._stable_s: deque[float] = deque(maxlen=KEPT_LATENCIES)
        """Latencies of the stable version, for the next trial."""
        self._last_problem = ""

    @property
    def stable_version(self) -> int:
        """That of `stable`."""
        return self._stable

    async def stable(self) -> Loaded:
        """The version that takes the traffic."""
        return await self.load(self._stable)

    async def chosen(self) -> Loaded:
        """The version for the next request: the stable one, or its canary in turn."""
        if self._canary is not None and self._canary.takes_next():
            return await self.load(self._canary.version)
        return await self.load(self._stable)

    async def pinned(self, version: int) -> Loaded:
        """A version that the request asks for.

        Raises:
            RequestError: if it does not exist or cannot be loaded.
        """
        try:
            if (self.name, version) not in self._loader.in_memory:
                if not await self._loader.in_thread(self._source.knows, version):
                    raise RequestError(
                        404, "unknown_version", f"policy {self.name} has no version {version}"
                    )
                if version in self._rejected:
                    raise self._failed_its_checks(version)
            return await self.load(version)
        except RegistryError as error:
            raise self._unavailable(version) from error
        except BundleError as error:
            self._rejected.add(version)
            raise self._failed_its_checks(version) from error

    async def of_session(self, version: int) -> Loaded:
        """The version of a session that has not pinned one: unless it was withdrawn since."""
        if version in self._rejected:
            return await self.stable()
        try:
            return await self.load(version)
        except RegistryError as error:
            raise self._unavailable(version) from error
        except BundleError:  # its files were damaged meanwhile
            return await self.stable()

    async def load(self, version: int) -> Loaded:
        """See `Loader.load`."""
        return await self._loader.load(self._source, version)

    async def act(
        self,
        loaded: Loaded,
        obs: FloatArray,
        *,
        deterministic: bool,
        recall: Recall,
        mask: Mask | None = None,
        pinned: bool = False,
    ) -> tuple[Loaded, Actions]:
        """Actions, and the version that gave them: the stable one where a canary fails.

        Args:
            loaded: the version to ask.
            obs: (B, *shape).
            deterministic: as of `PolicyRunner.act`.
            recall: gives the steps before.
            mask: as of `PolicyRunner.act`.
            pinned: the client wants that version and no other; the answer is not part of a trial.

        Raises:
            RequestError: if it has no answer to such observations.
        """
        on_trial = None if pinned else self._canary
        started = time.perf_counter()
        try:
            actions = await self._ask(loaded, obs, mask, deterministic, recall)
        except Exception as error:
            of_request = isinstance(error, RequestError) and not isinstance(error, NoFiniteAnswer)
            if of_request or on_trial is None or on_trial.version != loaded.version:
                raise
            stable = await self.stable()
            # If that one has no finite answer either, the new version is not to blame.
            actions = await self._ask(stable, obs, mask, deterministic, recall)
            on_trial.failed()
            await self._judge(one_line(error))
            return stable, actions
        if not pinned:
            seconds = time.perf_counter() - started
            if loaded.version == self._stable:
                self._stable_s.append(seconds)
            canary = self._canary
            if canary is not None and loaded.version in (self._stable, canary.version):
                canary.answered(loaded.version, seconds)
                await self._judge("its answers took too long")
        return loaded, actions

    async def start(self) -> None:
        """Loads the version that the other replicas serve, else the wanted one.

        Raises:
            RLServiceError: if it cannot be loaded; the service has nothing else to serve.
        """
        known: KnownVersions = await self._shared.known_versions(self.name)
        self._rejected = set(known.rejected)
        if known.stable is None:
            self._wanted = await self._loader.in_thread(self._source.wanted)
        version = known.stable or self._wanted
        await self.load(version)
        await self._move_to(version)

    async def watch_once(self) -> None:
        """Looks for a version that is wanted now, and moves to it if it passes."""
        try:
            await self._follow()
        except Exception as error:  # the registry may be away for a while
            problem = one_line(error)
            if problem != self._last_problem:
                self._last_problem = problem
                self._log(logging.ERROR, "watch_failed", problem=problem)

    async def _ask(
        self,
        loaded: Loaded,
        obs: FloatArray,
        mask: Mask | None,
        deterministic: bool,
        recall: Recall,
    ) -> Actions:
        num_histories = len(obs) if loaded.num_earlier else 0
        history = await self._loader.recall(recall, loaded.num_earlier, num_histories)
        try:
            actions = await loaded.batcher.act(
                obs, deterministic=deterministic, history=history, mask=mask
            )
        except ObservationError as error:
            raise RequestError(422, "invalid_observation", str(error)) from error
        if not np.isfinite(actions.log_prob).all():
            raise NoFiniteAnswer
        self._metrics.actions.labels(self.name, str(loaded.version)).inc(len(obs))
        return actions

    def _unavailable(self, version: int) -> RequestError:
        message = f"version {version} of {self.name} cannot be read now"
        return RequestError(503, "version_unavailable", message, retry_after_s=2)

    def _failed_its_checks(self, version: int) -> RequestError:
        message = f"version {version} of {self.name} failed its checks; ask for another"
        return RequestError(409, "rejected_version", message)

    async def _follow(self) -> None:
        wanted = await self._loader.in_thread(self._source.wanted)
        before, self._wanted = self._wanted, wanted
        if before not in (0, wanted) and wanted in self._rejected:  # it was promoted again
            self._rejected.discard(wanted)
            await self._shared.forgive(self.name, wanted)
        known: KnownVersions = await self._shared.known_versions(self.name)
        self._rejected |= set(known.rejected)
        if self._stable in self._rejected:  # it passed here, and failed elsewhere
            await self._go_back()
        canary = self._canary
        if canary is not None and (wanted != canary.version or canary.version in self._rejected):
            self._set_traffic(self._stable, None)
        if wanted == self._stable or self._canary is not None or wanted in self._rejected:
            return
        if wanted in self._proven or known.stable == wanted:  # or another replica has tried it
            await self.load(wanted)
            await self._move_to(wanted)
        else:
            await self._try(wanted)

    async def _go_back(self) -> None:
        """To the last version that took the traffic and was not rejected since, if there is one."""
        good = [version for version in self._proven if version not in self._rejected]
        if good:
            await self.load(good[-1])
            await self._move_to(good[-1])

    async def _try(self, version: int) -> None:
        """Checks a new version, and gives it a share of the requests or all of them."""
        try:
            _check_same_spaces(await self.load(version), await self.stable())
        except BundleError as error:
            await self._reject(version, "check", one_line(error))
            return
        if self._canary_share:
            self._set_traffic(self._stable, Canary(version, self._canary_share, self._stable_s))
            self._log(logging.INFO, "canary_started", version=version)
        else:
            await self._move_to(version)

    async def _judge(self, problem: str) -> None:
        """Ends a trial if its verdict is known; `problem` goes into the log of a bad one."""
        canary = self._canary
        if canary is None:
            return
        verdict = canary.verdict()
        if verdict == "running":
            return
        self._set_traffic(self._stable, None)
        if verdict == "passed":
            await self._move_to(canary.version)
        else:
            await self._reject(canary.version, verdict, problem)

    async def _move_to(self, version: int) -> None:
        self._set_traffic(version, self._canary)
        self._last_problem = ""
        self._stable_s.clear()
        self._proven = [each for each in self._proven if each != version] + [version]
        await self._shared.set_stable(self.name, version)
        self._metrics.version.labels(self.name).set(version)
        self._log(logging.INFO, "version_serves", version=version)

    async def _reject(self, version: int, reason: str, problem: str) -> None:
        self._rejected.add(version)
        self._metrics.rejected.labels(self.name, reason).inc()
        fields = {"version": version, "reason": reason, "problem": problem}
        self._log(logging.ERROR, "version_rejected", **fields, serves=self._stable)
        if await self._shared.reject(self.name, version):
            await self._loader.in_thread(self._source.give_up, version, self._stable)

    def _set_traffic(self, stable: int, canary: Canary | None) -> None:
        self._stable, self._canary = stable, canary
        in_use = {stable} if canary is None else {stable, canary.version}
        self._loader.in_use[self.name] = in_use

    def _log(self, level: int, event: str, **fields: object) -> None:
        _logger.log(level, event, extra={"fields": {"policy": self.name, **fields}})


def _check_same_spaces(new: Loaded, old: Loaded) -> None:
    """Clients send and receive what they did before."""
    specs = (new.policy.spec, old.policy.spec)
    theirs, ours = ((each.observation_space.layout, each.action_space) for each in specs)
    if theirs != ours:
        raise BundleError(
            f"version {new.version} has other observations or actions than version {old.version}; "
            f"serve it under another name"
        )
