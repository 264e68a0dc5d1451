"""Rollout workers that were requested and are not ready: they wait for a CPU, or start."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError

from custom_models.text import one_line
from rl_service.runtime.ray_session import is_placed

_FIRST_BACKOFF_S = 1.0
SHORTEST_START_TIMEOUT_S = 180.0  # on a busy machine; on a busy cluster some may never find room
_LOOK_S = 5.0  # asking for an actor's place takes a millisecond


def start_timeout_s(lost_timeout_s: float) -> float:
    """How long a process that has its place may take to start.

    Args:
        lost_timeout_s: how long a training without any worker waits for one.
    """
    return max(lost_timeout_s, SHORTEST_START_TIMEOUT_S)


class Spawn(Protocol):
    """Starts a worker."""

    def __call__(self, index: int, *, is_reserved: bool) -> ActorHandle:
        """Asks for the worker of an index.

        Args:
            index: of the worker.
            is_reserved: whether it is among those that there is room for in any case.
        """


@dataclass
class Start:
    """A worker that is starting."""

    index: int
    actor: ActorHandle
    node_id: ray.ObjectRef
    """Resolves when the worker is ready."""
    is_reserved: bool
    replaces: bool
    """Whether it replaces a lost worker."""
    placed_at: float | None = None
    """When it was first seen to have its CPUs; None: it waits for room."""


class FailedStart(NamedTuple):
    """A worker that failed to start."""

    start: Start
    reason: str
    raised: bool
    """Whether its own code failed, rather than its process, its node or its time limit."""


class Starts:
    """All workers of a run that are starting.

    Args:
        spawn: starts a worker.
        timeout_s: how long a worker that has its CPUs may take.
    """

    def __init__(self, spawn: Spawn, timeout_s: float) -> None:
        self.restored: dict[int, Any] = {}
        """State of those of a checkpoint's workers that are not ready again, by index."""
        self.next_index = 1
        """Of the next new worker; none is used twice."""
        self._spawn = spawn
        self._timeout_s = timeout_s
        self._starts: dict[int, Start] = {}
        self._looked_at = 0.0

    def __len__(self) -> int:
        return len(self._starts)

    def ask_for(self, count: int, num_replacing: int, num_reserved: int) -> None:
        """Starts more workers, those of a checkpoint first.

        Args:
            count: how many.
            num_replacing: how many of them replace lost workers.
            num_reserved: reserved places that no ready worker has; some may start there.
        """
        taken = sum(start.is_reserved for start in self._starts.values())
        for number, index in enumerate(self._new_indices(count)):
            is_reserved = taken + number < num_reserved
            actor = self._spawn(index, is_reserved=is_reserved)
            node_id = actor.join.remote(self.restored.get(index))
            self._starts[index] = Start(index, actor, node_id, is_reserved, number < num_replacing)

    def _new_indices(self, count: int) -> list[int]:
        again = sorted(self.restored.keys() - self._starts.keys())[:count]
        first = self.next_index
        self.next_index += count - len(again)
        return [*again, *range(first, self.next_index)]

    def call_off(self, count: int, is_reserved: bool) -> None:
        """Ends the newest worker with a reserved place, or without one."""
        found = [start for start in self._starts.values() if start.is_reserved == is_reserved]
        for start in sorted(found, key=lambda it: -it.index)[:count]:
            self._end(start)

    def wait(self, timeout_s: float) -> None:
        """Waits until one of them is ready or has failed."""
        refs = [start.node_id for start in self._starts.values()]
        if refs:
            ray.wait(refs, num_returns=1, timeout=timeout_s, fetch_local=False)
        else:  # the next try is not due yet
            time.sleep(timeout_s)

    def collect(self) -> tuple[list[tuple[Start, str]], list[FailedStart]]:
        """Removes and returns those that are ready, with their node's id, and those that failed."""
        ready: list[tuple[Start, str]] = []
        failed: list[FailedStart] = []
        by_ref = {start.node_id: start for start in self._starts.values()}
        for ref in _done(list(by_ref)):
            start = by_ref.pop(ref)
            try:
                ready.append((start, ray.get(ref)))
            except RayError as error:
                raised = isinstance(error, RayActorError) and error.actor_init_failed
                failed.append(FailedStart(start, reason_of(error), raised))
        failed += self._stuck(by_ref.values())
        for start, _ in ready:
            del self._starts[start.index]
            self.restored.pop(start.index, None)
        for start, _, _ in failed:
            self._end(start)
            self.restored.pop(start.index, None)  # it may be what they fail from
        return ready, failed

    def _stuck(self, starts: Iterable[Start]) -> Iterator[FailedStart]:
        now = time.monotonic()
        if now - self._looked_at > _LOOK_S:
            self.placed()
        for start in starts:
            if start.placed_at is not None and now - start.placed_at > self._timeout_s:
                reason = f"it has its CPUs and is not ready after {self._timeout_s:g} s"
                yield FailedStart(start, reason, raised=False)

    def placed(self) -> list[Start]:
        """The workers that already have their CPUs."""
        self._looked_at = time.monotonic()
        for start in self._starts.values():
            if start.placed_at is None and is_placed(start.actor):
                start.placed_at = self._looked_at
        return [start for start in self._starts.values() if start.placed_at is not None]

    def _end(self, start: Start) -> None:
        ray.kill(start.actor)
        del self._starts[start.index]


def _done(refs: list[ray.ObjectRef]) -> list[ray.ObjectRef]:
    if not refs:
        return []
    done, _ = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
    return list(done)


class BackOff:
    """When to try again after failures: 1, 2, 4, … s later.

    Args:
        longest_s: longest time between two attempts.
    """

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._failures = 0
        self._due_at = 0.0

    @property
    def is_due(self) -> bool:
        """Whether to try now."""
        return time.monotonic() >= self._due_at

    def put_off(self) -> str:
        """Postpones the next attempt, once for all failures meanwhile.

        Returns:
            When it is.
        """
        now = time.monotonic()
        if now >= self._due_at:
            wait_s = min(_FIRST_BACKOFF_S * 2**self._failures, self._longest_s)
            self._failures += 1
            self._due_at = now + wait_s
        return f"next try in {self._due_at - now:.2g} s"

    def forget(self) -> None:
        """Resets the delay: the last attempt worked."""
        self._failures, self._due_at = 0, 0.0


_SHOWN_CHARACTERS = 300  # of what Ray says, which may be pages
_DEATHS = {
    "node has died": "its node died",
    "worker process has died": "its process died",
    "OutOfMemory": "it was killed for memory",
}


def reason_of(error: Exception) -> str:
    """The cause of a Ray error, in a few words."""
    text = one_line(error)
    for phrase, short in _DEATHS.items():
        if phrase in text:
            return short
    if isinstance(error, RayActorError) and error.actor_init_failed:
        last = str(error).strip().splitlines()[-1]  # of the traceback: `module.Class: text`
        return re.sub(r"^[\w.]+\.(?=\w+:)", "", last)[:_SHOWN_CHARACTERS]
    cause = getattr(error, "cause", None) or error
    return f"{type(cause).__name__}: {one_line(cause)}"[:_SHOWN_CHARACTERS]
