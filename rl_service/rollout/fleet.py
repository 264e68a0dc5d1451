"""The rollout workers of a training: actors that come, go, die and are replaced.

RLlib's `EnvRunnerGroup` can add workers and cannot remove them, gives an index to two of them, and
starts new ones with random weights. Here an index is used once, so no two workers of a run ever
play the same episodes; weights and filters travel with each request to sample, so nobody samples
with old ones; and whoever is wanted beyond what there is room for waits as a pending actor. That
is the demand that Ray's autoscaler sees, it ends with the training, and several trainings do not
overwrite each other's, as they would with `request_resources`.

All methods are to be called by one thread at a time.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError

from rl_service.config.text import one_line
from rl_service.errors import TrainingFailedError, WorkersLostError

logger = logging.getLogger(__name__)

_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 1.0, 60.0
_POLL_S = 0.2
_LEAVING_S = 10.0  # to close its environments
_CALL_TIMEOUT_S = 60.0
_ALL_THERE_TIMEOUT_S = 180.0  # on a busy cluster some may never find room

_SHOWN_CHARACTERS = 300  # of what Ray says, which may be pages
_DEATHS = {
    "node has died": "its node died",
    "worker process has died": "its process died",
    "OutOfMemory": "it was killed for memory",
}

Spawn = Callable[[int], ActorHandle]
"""Starts the worker of an index."""


@dataclass(frozen=True)
class Worker:
    """A worker that is ready to sample."""

    index: int
    actor: ActorHandle
    node_id: str


@dataclass(frozen=True)
class _Starting:
    index: int
    actor: ActorHandle
    node_id: ray.ObjectRef
    """Resolves when the worker is ready."""


@dataclass
class FleetState:
    """What a checkpoint keeps of a fleet; plain values."""

    size: int
    next_index: int = 1
    num_restarts: int = 0
    worker_hours: float = 0.0
    workers: dict[int, Any] = field(default_factory=dict)
    """State of each worker that could be asked, by its index."""


class Fleet:
    """As many workers as are wanted, or on their way.

    Args:
        spawn: starts a worker.
        size: workers wanted at first.
        lost_timeout_s: how long a training without any worker waits for one.
    """

    def __init__(self, spawn: Spawn, size: int, lost_timeout_s: float) -> None:
        self.size = size
        self.num_restarts = 0
        """Workers that took the place of a lost one."""
        self.worker_hours = 0.0
        """Time that workers have been ready, summed over them."""
        self.ready: dict[int, Worker] = {}
        self._spawn = spawn
        self._lost_timeout_s = lost_timeout_s
        self._starting: dict[int, _Starting] = {}
        self._leaving: list[tuple[ActorHandle, ray.ObjectRef, float]] = []
        self._restored: dict[int, Any] = {}
        self._next_index = 1
        self._num_lost = 0
        self._failed_starts = 0
        self._retry_at = 0.0
        self._polled_at: float | None = None
        self._messages: list[str] = []

    @property
    def num_starting(self) -> int:
        """Workers that were asked for and are not ready: they start, or wait for room."""
        return len(self._starting)

    def pop_messages(self) -> list[str]:
        """What happened since the last call, one line each."""
        messages, self._messages = self._messages, []
        return messages

    def tell(self, message: str) -> None:
        """Keeps a line for the user, and writes it to the log."""
        logger.warning(message)
        self._messages.append(message)

    def start(self, enough: int) -> None:
        """Starts the workers, once, and waits for all of them, or for enough if some find no room.

        Args:
            enough: workers to begin with at least.

        Raises:
            TrainingFailedError: if one of them fails while it starts.
        """
        if self._polled_at is not None:
            return
        started = self._polled_at = time.monotonic()
        while len(self.ready) < min(enough, self.size):
            self._fill()
            self._wait_for_start(_POLL_S)
            self._admit(must_start=True)
            waited_s = time.monotonic() - started
            if not self.ready and waited_s > max(self._lost_timeout_s, _ALL_THERE_TIMEOUT_S):
                raise self._all_lost()
            if self.ready and waited_s > _ALL_THERE_TIMEOUT_S:
                self.tell(
                    f"{len(self.ready)} of {self.size} rollout workers are ready after "
                    f"{waited_s:.0f} s; the others join when there is room for them"
                )
                return

    def stop(self) -> None:
        """Ends all workers at once; a fleet can be started anew afterwards."""
        actors = [each.actor for each in self.ready.values()]
        actors += [each.actor for each in self._starting.values()]
        for actor in [*actors, *(actor for actor, _, _ in self._leaving)]:
            ray.kill(actor)
        self.ready, self._starting, self._leaving = {}, {}, []
        self._polled_at = None

    def resize(self, size: int) -> None:
        """Wants another number of workers from here on; to be called between two batches.

        Those that have not come yet are called off first. Of the others those leave that share
        their node with the fewest, so that whole nodes become free; this process's node comes
        last. They have nothing in hand, since their last batch is in.
        """
        self.size = size
        for index in sorted(self._starting, reverse=True)[: max(0, self._surplus)]:
            ray.kill(self._starting.pop(index).actor)
        while self._surplus > 0:
            self._let_go(self._next_to_leave())
        self._fill()

    def poll(self) -> None:
        """Lets in who has become ready, replaces who is lost, sees off who leaves."""
        now = time.monotonic()
        if self._polled_at is not None:
            self.worker_hours += len(self.ready) * (now - self._polled_at) / 3600.0
        self._polled_at = now
        self._admit(must_start=False)
        self._fill()
        self._see_off(now)

    def wait_until_ready(self) -> None:
        """Waits, if no worker is ready, until one is.

        Raises:
            WorkersLostError: if none comes in time.
        """
        deadline = time.monotonic() + self._lost_timeout_s
        if not self.ready:
            self.tell("no rollout worker is left; waiting for one")
        while not self.ready:
            if time.monotonic() > deadline:
                raise self._all_lost()
            self._wait_for_start(_POLL_S)
            self.poll()

    def lose(self, index: int, reason: str) -> None:
        """Gives up a worker that died or hangs; `poll` replaces it."""
        worker = self.ready.pop(index, None)
        if worker is None:
            return
        ray.kill(worker.actor)
        self._num_lost += 1
        self.tell(f"rollout worker {index} is lost ({reason}); {len(self.ready)} left")

    def call(self, method: str, *arguments: Any) -> dict[int, Any]:
        """What a method of each ready worker returns, by index; those that do not answer are lost.

        Args:
            method: name.
            *arguments: the same for all.
        """
        refs = {
            index: getattr(each.actor, method).remote(*arguments)
            for index, each in self.ready.items()
        }
        results = {}
        for index, ref in refs.items():
            try:
                results[index] = ray.get(ref, timeout=_CALL_TIMEOUT_S)
            except RayError as error:  # also a time-out
                self.lose(index, reason_of(error))
        return results

    def state(self) -> FleetState:
        """For a checkpoint."""
        workers = self.call("get_rollout_state") if self.ready else dict(self._restored)
        return FleetState(
            self.size, self._next_index, self.num_restarts, self.worker_hours, workers
        )

    def restore(self, state: FleetState, size: int) -> None:
        """Goes on from a checkpoint at the next start: the same workers, where they were.

        Args:
            state: of the checkpoint.
            size: workers wanted now.
        """
        self.stop()
        self.size = size
        self._next_index, self._restored = state.next_index, dict(state.workers)
        self.num_restarts, self.worker_hours = state.num_restarts, state.worker_hours

    @property
    def _surplus(self) -> int:
        return len(self.ready) + len(self._starting) - self.size

    def _fill(self) -> None:
        """Starts those that are missing; after failed starts only now and then."""
        if self._surplus >= 0 or time.monotonic() < self._retry_at:
            return
        self.num_restarts += min(self._num_lost, -self._surplus)
        self._num_lost = 0
        for index in self._new_indices(-self._surplus):
            actor = self._spawn(index)
            node_id = actor.join.remote(self._restored.pop(index, None))
            self._starting[index] = _Starting(index, actor, node_id)

    def _new_indices(self, count: int) -> Iterator[int]:
        """Those of a checkpoint's workers first."""
        for _ in range(count):
            if self._restored:
                yield min(self._restored)
            else:
                yield self._next_index
                self._next_index += 1

    def _wait_for_start(self, timeout_s: float) -> None:
        refs = [each.node_id for each in self._starting.values()]
        if refs:
            ray.wait(refs, num_returns=1, timeout=timeout_s, fetch_local=False)
        else:  # the next try is not due yet
            time.sleep(timeout_s)

    def _admit(self, must_start: bool) -> None:
        by_ref = {each.node_id: each for each in self._starting.values()}
        if not by_ref:
            return
        done, _ = ray.wait(list(by_ref), num_returns=len(by_ref), timeout=0, fetch_local=False)
        for ref in done:
            worker = by_ref[ref]
            del self._starting[worker.index]
            try:
                node_id = ray.get(ref)
            except RayError as error:
                self._start_failed(worker.index, error, must_start)
                continue
            self.ready[worker.index] = Worker(worker.index, worker.actor, node_id)
            self._failed_starts = 0
        self.ready = dict(sorted(self.ready.items()))

    def _start_failed(self, index: int, error: RayError, must_start: bool) -> None:
        reason = reason_of(error)
        if must_start and isinstance(error, RayActorError) and error.actor_init_failed:
            raise TrainingFailedError(f"rollout worker {index} did not start: {reason}")
        self._failed_starts += 1
        self._num_lost += 1
        wait_s = min(_FIRST_BACKOFF_S * 2 ** (self._failed_starts - 1), _LONGEST_BACKOFF_S)
        self._retry_at = time.monotonic() + wait_s
        self.tell(f"rollout worker {index} did not start ({reason}); next try in {wait_s:g} s")

    def _next_to_leave(self) -> Worker:
        """The newest on the node with the fewest workers."""
        here = ray.get_runtime_context().get_node_id()
        nodes = Counter(each.node_id for each in self.ready.values())
        return min(
            self.ready.values(),
            key=lambda each: (each.node_id == here, nodes[each.node_id], each.node_id, -each.index),
        )

    def _let_go(self, worker: Worker) -> None:
        del self.ready[worker.index]
        closed = worker.actor.stop.remote()  # its environments may own processes
        self._leaving.append((worker.actor, closed, time.monotonic() + _LEAVING_S))

    def _see_off(self, now: float) -> None:
        """Kills who has closed its environments, or takes too long to."""
        staying = []
        for actor, closed, deadline in self._leaving:
            done, _ = ray.wait([closed], timeout=0)
            if done or now > deadline:
                ray.kill(actor)
            else:
                staying.append((actor, closed, deadline))
        self._leaving = staying

    def _all_lost(self) -> WorkersLostError:
        return WorkersLostError(
            f"no rollout worker is left and none came within {self._lost_timeout_s:g} s "
            f"(resources.lost_timeout_s); look for the reason in the log, make room on the "
            f"cluster, then go on with --resume"
        )


def reason_of(error: Exception) -> str:
    """What is behind an error of Ray, in a few words."""
    text = one_line(error)
    for told, short in _DEATHS.items():
        if told in text:
            return short
    if isinstance(error, RayActorError) and error.actor_init_failed:
        last = str(error).strip().splitlines()[-1]  # of the traceback: `module.Class: text`
        return re.sub(r"^[\w.]+\.(?=\w+:)", "", last)[:_SHOWN_CHARACTERS]
    cause = getattr(error, "cause", None) or error
    return f"{type(cause).__name__}: {one_line(cause)}"[:_SHOWN_CHARACTERS]
