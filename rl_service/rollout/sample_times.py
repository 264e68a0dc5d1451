"""How long a batch takes by the number of workers: what was measured, and a model for the rest.

    x(n) = a + W/n

a: seconds that no worker takes away (weights out, samples in, workers that share a core).
W: worker-seconds that are shared out. Both follow from the counts that the run has tried.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median_low
from typing import NamedTuple

WINDOW = 3
"""Iterations that a median is taken over: one outlier is ignored, a new load shows in the second
iteration that has it."""
MEMORY = 50
"""Iterations after which a count that was not used since counts as untried: what looked useless
while the load grew, or on other nodes, gets another chance."""
PRIOR = 0.02
"""Weight of the guess a = 0 beside measured counts. It decides while there is one count alone,
steadies a line through two that lie close together (8 and 10), and gives way to 1 and 2."""


class Model(NamedTuple):
    """The two parameters, in seconds."""

    fixed_s: float
    """a."""
    shared_s: float
    """W."""

    def time_s(self, num_workers: int) -> float:
        """x(n)."""
        return self.fixed_s + self.shared_s / num_workers


class _Measured(NamedTuple):
    time_s: float
    iteration: int


class SampleTimes:
    """Medians by count. When the load changes at one count, the others are moved with it."""

    def __init__(self) -> None:
        self._count = 0
        """Workers of the last batch."""
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._by_count: dict[int, _Measured] = {}
        self.anchor = 0
        """The count that was measured last; 0: none yet."""

    def add(self, iteration: int, num_workers: int, time_s: float) -> bool:
        """Takes in the time of one batch.

        Returns:
            Whether it was used: the first batch of a count warms its workers up, and times that
            are no positive number say nothing.
        """
        if not (math.isfinite(time_s) and time_s > 0.0 and num_workers > 0):
            return False
        if num_workers != self._count:
            self._count = num_workers
            self._recent.clear()
            return False
        self._take(iteration, time_s)
        return True

    def _take(self, iteration: int, time_s: float) -> None:
        settled = len(self._recent) == WINDOW
        self._recent.append(time_s)
        # Of two, the lower: one slow batch is no reason to ask for workers.
        level = median_low(self._recent)
        if settled:
            self._move_others(level / self._by_count[self._count].time_s)
        self.anchor = self._count
        self._by_count[self.anchor] = _Measured(level, iteration)
        self._by_count = {
            n: each for n, each in self._by_count.items() if each.iteration > iteration - MEMORY
        }

    def _move_others(self, factor: float) -> None:
        """Keeps the shape of the curve when its level changes: batches got dearer for all."""
        self._by_count = {
            n: _Measured(each.time_s * factor, each.iteration) for n, each in self._by_count.items()
        }

    @property
    def measured(self) -> dict[int, float]:
        """Seconds by count, in rising order of counts."""
        return {n: self._by_count[n].time_s for n in sorted(self._by_count)}

    def model(self) -> Model:
        """The line in 1/n through the anchor that fits the other counts best (least squares).

        a and W are never negative: that would promise time that nobody has seen.
        """
        here = self._by_count[self.anchor].time_s
        products, squares = PRIOR * here / self.anchor, PRIOR / self.anchor**2
        for n, each in self._by_count.items():
            distance = 1.0 / n - 1.0 / self.anchor
            products += distance * (each.time_s - here)
            squares += distance * distance
        shared = min(max(products / squares, 0.0), here * self.anchor)
        return Model(here - shared / self.anchor, shared)
