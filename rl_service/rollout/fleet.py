"""The rollout workers of a training: actors that join, leave, die and are replaced.

RLlib's `EnvRunnerGroup` can add workers and cannot remove them, gives an index to two of them, and
starts new ones with random weights. Here an index is used once, so no two workers of a run ever
play the same episodes; weights and filters travel with each request to sample, so nobody samples
with old ones; and whoever is wanted beyond what there is room for waits as a pending actor. That
is the demand that Ray's autoscaler sees, it ends with the training, and several trainings do not
overwrite each other's, as they would with `request_resources`.

Only `stop` may be called while another thread is in a method.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.util import get_current_placement_group

from rl_service.common.errors import TrainingFailedError, WorkersLostError
from rl_service.rollout.starting import (
    SHORTEST_START_TIMEOUT_S,
    BackOff,
    Spawn,
    Start,
    Starts,
    reason_of,
    start_timeout_s,
)

logger = logging.getLogger(__name__)

_POLL_S = 0.2
_LONGEST_BACKOFF_S = 60.0
_LEAVING_S = 10.0  # to close its environments
_CALL_TIMEOUT_S = 60.0
_LONG_START_S = 30.0  # most of them take less, even on few cores


@dataclass(frozen=True)
class Worker:
    """A worker that is ready to sample."""

    index: int
    actor: ActorHandle
    node_id: str
    is_reserved: bool


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
    """The workers that are ready, and those that are starting.

    Args:
        spawn: starts a worker.
        size: workers wanted at first.
        num_reserved: workers that there is room for in any case.
        lost_timeout_s: how long a training without any worker waits for one; so long, and 180 s at
            least, may a worker that has its CPUs take to start.
    """

    def __init__(self, spawn: Spawn, size: int, num_reserved: int, lost_timeout_s: float) -> None:
        self.size = size
        self.lost_timeout_s = lost_timeout_s
        self.on_message: Callable[[str], None] = lambda _: None
        """Receives lines for the user, also during sampling, in the sampling thread."""
        self.num_restarts = 0
        """Workers that replaced a lost one."""
        self.worker_hours = 0.0
        """Time that workers have been ready, summed over them."""
        self.ready: dict[int, Worker] = {}
        self._start_timeout_s = start_timeout_s(lost_timeout_s)
        self._num_reserved = num_reserved
        self._starts = Starts(spawn, self._start_timeout_s)
        self._leaving: list[tuple[ActorHandle, ray.ObjectRef, float]] = []
        self._proven: set[int] = set()
        """Indices of workers that have returned samples."""
        self._num_unreplaced = 0
        self._back_off = BackOff(min(_LONGEST_BACKOFF_S, lost_timeout_s / 2))
        self._lock = threading.RLock()
        """Held while workers join and leave, so that none joins while all are ended."""
        self._is_running = False
        self._counted_at = 0.0
        """Until when `worker_hours` are counted."""

    @property
    def num_starting(self) -> int:
        """Workers that were requested and are not ready: they start, or wait for room."""
        return len(self._starts)

    def count_held(self) -> int:
        """Workers that have their CPUs, or whose CPUs a Tune trial keeps for them."""
        there: list[Worker | Start] = [*self.ready.values(), *self._starts.placed()]
        if get_current_placement_group() is None:
            return len(there)
        return self._num_reserved + sum(not each.is_reserved for each in there)

    def tell(self, message: str) -> None:
        """Shows the user a line, and writes it to the log."""
        logger.warning(message)
        self.on_message(message)

    def start(self, enough: int) -> None:
        """Starts the workers once, and waits for all of them, or for enough if room is short.

        Args:
            enough: fewest workers to start with.

        Raises:
            TrainingFailedError: if one of them fails while it starts.
        """
        if self._is_running:
            return
        self._is_running = True
        started = self._counted_at = time.monotonic()
        reminded = False
        while len(self.ready) < min(enough, self.size):
            self._fill()
            self._starts.wait(_POLL_S)
            self._admit(must_start=True)
            waited_s = time.monotonic() - started
            if not self.ready and waited_s > self._start_timeout_s:
                raise all_lost(waited_s)
            if self.ready and waited_s > SHORTEST_START_TIMEOUT_S:
                self.tell(f"{self._how_many_are_ready(waited_s)}; the others join when they can")
                return
            if waited_s > _LONG_START_S and not reminded:
                reminded = True
                self.tell(f"{self._how_many_are_ready(waited_s)}; waiting for the others")

    def _how_many_are_ready(self, waited_s: float) -> str:
        return f"{len(self.ready)} of {self.size} rollout workers are ready after {waited_s:.0f} s"

    def stop(self) -> None:
        """Ends all workers at once, even if another thread polls; a fleet can be started again."""
        with self._lock:
            self._is_running = False
            actors = [each.actor for each in self.ready.values()]
            actors += [actor for actor, _, _ in self._leaving]
            self.ready, self._leaving = {}, []
            for is_reserved in (False, True):
                self._starts.call_off(len(self._starts), is_reserved)
        for actor in actors:
            ray.kill(actor)

    def resize(self, size: int) -> None:
        """Changes the number of workers that are wanted; call it between two batches.

        Workers that are still starting are cancelled first. Then workers on the nodes with the
        fewest workers leave, so that whole nodes become free; this process's node comes last. They
        have nothing in hand, since their last batch is in. Reserved places are given up after all
        others.
        """
        self._count_hours()
        self.size = size
        for is_reserved in (False, True):
            self._starts.call_off(max(0, self._surplus), is_reserved)
            while self._surplus > 0 and (leaving := self._next_to_leave(is_reserved)):
                self._let_go(leaving)
        self._fill()

    def poll(self) -> None:
        """Adds workers that became ready, replaces lost ones, and ends those that leave.

        Raises:
            TrainingFailedError: if the fleet was stopped meanwhile.
        """
        with self._lock:
            if not self._is_running:
                raise TrainingFailedError("the rollout workers were stopped")
            self._admit(must_start=False)
            self._fill()
            self._see_off(time.monotonic())

    def wait_until_ready(self) -> None:
        """Waits, if no worker is ready, until one is.

        Raises:
            WorkersLostError: if none comes in time.
        """
        started = time.monotonic()
        if not self.ready:
            self.tell("no rollout worker is left; waiting for one")
        while not self.ready:
            waited_s = time.monotonic() - started
            if waited_s > self.lost_timeout_s:
                raise all_lost(waited_s)
            self._starts.wait(_POLL_S)
            self.poll()

    def has_sampled(self, index: int) -> None:
        """Records that a worker returned samples, so it works."""
        if index not in self._proven:
            self._proven.add(index)
            self._back_off.forget()

    def lose(self, index: int, reason: str) -> None:
        """Gives up a worker that died or hangs; `poll` replaces it.

        If it never returned samples, its replacement waits, as after a failed start.
        """
        with self._lock:
            self._count_hours()
            worker = self.ready.pop(index, None)
        if worker is None:
            return
        ray.kill(worker.actor)
        self._num_unreplaced += 1
        later = "" if index in self._proven else f"; {self._back_off.put_off()}"
        self.tell(f"rollout worker {index} is lost ({reason}); {len(self.ready)} left{later}")

    def call(self, method: str, *arguments: Any) -> dict[int, Any]:
        """Calls a method of each ready worker; returns the results by index. No answer: it is lost.

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
        self._count_hours()
        workers = self._starts.restored | self.call("get_rollout_state")
        return FleetState(
            self.size, self._starts.next_index, self.num_restarts, self.worker_hours, workers
        )

    def restore(self, state: FleetState, size: int) -> None:
        """Continues from a checkpoint at the next start: the same workers, at the same steps.

        Args:
            state: from the checkpoint.
            size: workers wanted now.
        """
        self.stop()
        self.size = size
        self._starts.next_index, self._starts.restored = state.next_index, dict(state.workers)
        self.num_restarts, self.worker_hours = state.num_restarts, state.worker_hours

    @property
    def _surplus(self) -> int:
        return len(self.ready) + len(self._starts) - self.size

    def _fill(self) -> None:
        """Starts missing workers; after failures it waits between two attempts."""
        missing = -self._surplus
        if missing <= 0:
            self._num_unreplaced = 0  # fewer are wanted than were lost
        if missing <= 0 or not self._back_off.is_due:
            return
        reserved = self._num_reserved - sum(each.is_reserved for each in self.ready.values())
        self._starts.ask_for(missing, self._num_unreplaced, reserved)
        self._num_unreplaced = max(0, self._num_unreplaced - missing)

    def _admit(self, must_start: bool) -> None:
        self._count_hours()
        ready, failed = self._starts.collect()
        for start, node_id in ready:
            self.num_restarts += start.replaces
            self.ready[start.index] = Worker(start.index, start.actor, node_id, start.is_reserved)
        self.ready = dict(sorted(self.ready.items()))
        for start, reason, raised in failed:
            what = f"rollout worker {start.index} did not start"
            if must_start and raised:
                raise TrainingFailedError(f"{what}: {reason}")
            self._num_unreplaced += start.replaces
            self.tell(f"{what} ({reason}); {self._back_off.put_off()}")

    def _count_hours(self) -> None:
        """Adds the time of the ready workers; call it before their number changes."""
        now = time.monotonic()
        self.worker_hours += len(self.ready) * (now - self._counted_at) / 3600.0
        self._counted_at = now

    def _next_to_leave(self, is_reserved: bool) -> Worker | None:
        """The newest worker on the node with the fewest, with or without a reserved place."""
        here = ray.get_runtime_context().get_node_id()
        nodes = Counter(each.node_id for each in self.ready.values())
        return min(
            (each for each in self.ready.values() if each.is_reserved == is_reserved),
            key=lambda each: (each.node_id == here, nodes[each.node_id], each.node_id, -each.index),
            default=None,
        )

    def _let_go(self, worker: Worker) -> None:
        del self.ready[worker.index]
        closed = worker.actor.stop.remote()  # its environments may own processes
        self._leaving.append((worker.actor, closed, time.monotonic() + _LEAVING_S))

    def _see_off(self, now: float) -> None:
        """Kills workers that have closed their environments or take too long."""
        staying = []
        for actor, closed, deadline in self._leaving:
            done, _ = ray.wait([closed], timeout=0)
            if done or now > deadline:
                ray.kill(actor)
            else:
                staying.append((actor, closed, deadline))
        self._leaving = staying


def all_lost(waited_s: float) -> WorkersLostError:
    """Why a run ends in which no worker samples any more.

    Args:
        waited_s: how long it waited for one.
    """
    return WorkersLostError(
        f"no rollout worker has returned samples for {waited_s:.0f} s "
        f"(resources.lost_timeout_s); look for the reason in the log, make room on the cluster, "
        f"then continue with --resume"
    )
