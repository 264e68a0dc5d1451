"""What work waits for: cores that processes share, and links that carry one thing at a time."""

from __future__ import annotations

import heapq
import itertools

import simpy


class _Process:
    """Jobs of one process, which take turns; progress is counted in seconds of a whole core."""

    def __init__(self) -> None:
        self.booked = -1
        """Number of the entry for its next end; earlier ones are void."""
        self._jobs: list[tuple[float, int, simpy.Event]] = []
        """Those that end first, first; each ends when the turns of all reach its number."""
        self._turns_s, self._seen_s = 0.0, 0.0

    @property
    def is_idle(self) -> bool:
        return not self._jobs

    @property
    def next_end_s(self) -> float:
        """Progress of the process at which its next job ends."""
        return self._seen_s + (self._jobs[0][0] - self._turns_s) * len(self._jobs)

    def add(self, seconds: float, number: int, done: simpy.Event, now_s: float) -> None:
        self._take_turns(now_s)
        heapq.heappush(self._jobs, (self._turns_s + seconds, number, done))

    def end_next(self, now_s: float) -> simpy.Event:
        self._take_turns(now_s)
        return heapq.heappop(self._jobs)[2]

    def _take_turns(self, now_s: float) -> None:
        if self._jobs:
            self._turns_s += (now_s - self._seen_s) / len(self._jobs)
        self._seen_s = now_s


class Cores:
    """The cores of one node.

    A process uses one core at most: its threads take turns, as Python's do. More processes than
    cores share them evenly. A core is slower while others are busy, too (shared caches and
    hyperthreads).

    Args:
        env: the simulation.
        count: cores.
        busy_speed: speed of a core while all are busy, of one that works alone; in between, in
            proportion.
    """

    def __init__(self, env: simpy.Environment, count: int, busy_speed: float = 1.0) -> None:
        self._env = env
        self._count = count
        self._busy_speed = busy_speed
        self._busy: dict[str, _Process] = {}
        self._progress_s = 0.0
        """Of each busy process since the start: all are equally fast, so one number does."""
        self._since = 0.0
        self._ends: list[tuple[float, int, str]] = []
        """(progress, number, owner) of each process's next end, and void ones."""
        self._numbers = itertools.count()
        self._turn = 0

    def work(self, seconds: float, owner: str) -> simpy.Event:
        """An event that happens once the work is done.

        Args:
            seconds: that it takes on a core alone.
            owner: process that does it.
        """
        self._advance()
        process = self._busy.setdefault(owner, _Process())
        done = self._env.event()
        process.add(seconds, next(self._numbers), done, self._progress_s)
        self._book(owner, process)
        self._await_next()
        return done

    @property
    def _speed(self) -> float:
        """Seconds of work that a process gets done in a second."""
        others = min(len(self._busy), self._count) - 1
        slowdown = (1.0 - self._busy_speed) * others / max(1, self._count - 1)
        return min(1.0, self._count / len(self._busy)) * (1.0 - slowdown)

    def _advance(self) -> None:
        elapsed, self._since = self._env.now - self._since, self._env.now
        if self._busy:
            self._progress_s += elapsed * self._speed

    def _book(self, owner: str, process: _Process) -> None:
        process.booked = next(self._numbers)
        heapq.heappush(self._ends, (process.next_end_s, process.booked, owner))

    def _await_next(self) -> None:
        """Waits for the job that ends first, as things are now; a change makes it void."""
        self._turn += 1
        while self._ends and not self._is_valid(self._ends[0]):
            heapq.heappop(self._ends)
        if self._ends:
            delay = max(0.0, (self._ends[0][0] - self._progress_s) / self._speed)
            timeout = self._env.timeout(delay, value=self._turn)
            timeout.callbacks.append(self._end_next)

    def _is_valid(self, entry: tuple[float, int, str]) -> bool:
        _, number, owner = entry
        return owner in self._busy and self._busy[owner].booked == number

    def _end_next(self, timeout: simpy.Event) -> None:
        if timeout.value != self._turn:
            return
        self._advance()
        _, _, owner = heapq.heappop(self._ends)
        process = self._busy[owner]
        done = process.end_next(self._progress_s)
        if process.is_idle:
            del self._busy[owner]
        else:
            self._book(owner, process)
        done.succeed()
        self._await_next()


class Link:
    """One direction of a node's network: transfers wait in line, then take their bytes' time.

    Args:
        env: the simulation.
        bytes_per_s: bandwidth.
        latency_s: of each transfer; it keeps nobody else waiting.
    """

    def __init__(self, env: simpy.Environment, bytes_per_s: float, latency_s: float) -> None:
        self._env = env
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s
        self._free_at = 0.0

    def carry(self, num_bytes: float) -> simpy.Event:
        """An event that happens once all bytes are there."""
        self._free_at = max(self._free_at, self._env.now) + num_bytes / self._bytes_per_s
        return self._env.timeout(self._free_at - self._env.now + self._latency_s)
