"""How far a run is and how long it will still take."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from rl_service.config.settings import Settings

_RECENT_ROWS = 20


class Pace:
    """Share done and time left of a run, from its rows and its limits.

    The time per iteration is that of the recent ones, evaluations between them included. A run
    ends at the first of its limits; a limit on the return cannot be foreseen.
    """

    def __init__(self, settings: Settings, total_iterations: int | None) -> None:
        self._stop = settings.stop
        self._steps_per_iteration = settings.algorithm.train_batch_size
        self._total_iterations = total_iterations
        self._row_times: deque[float] = deque(maxlen=_RECENT_ROWS)
        self._row: Mapping[str, Any] = {}

    def update(self, row: Mapping[str, Any]) -> None:
        """Takes a row when its iteration has just ended."""
        self._row = row
        self._row_times.append(time.monotonic())

    @property
    def share_done(self) -> float | None:
        """From 0 to 1; None if no limit can be foreseen or nothing was done yet."""
        shares = [done / limit for done, limit, _ in self._limits()]
        return min(1.0, max(shares)) if shares else None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the first limit, counted from now; None if that is unknown."""
        left = [(limit - done) * unit_s for done, limit, unit_s in self._limits()]
        if not left:
            return None
        return max(0.0, min(left) - (time.monotonic() - self._row_times[-1]))

    def _limits(self) -> list[tuple[float, float, float]]:
        """For each limit that there is: done, allowed, and the seconds that one unit takes."""
        iteration_s = self._iteration_s()
        limits = [
            ("training_iteration", self._total_iterations, iteration_s),
            (
                "num_env_steps_sampled_lifetime",
                self._stop.env_steps,
                iteration_s / self._steps_per_iteration,
            ),
            ("time_total_s", self._stop.time_s, 1.0),
        ]
        return [
            (self._row[key], limit, unit_s)
            for key, limit, unit_s in limits
            if limit is not None and key in self._row
        ]

    def _iteration_s(self) -> float:
        if len(self._row_times) > 1:
            return (self._row_times[-1] - self._row_times[0]) / (len(self._row_times) - 1)
        return float(self._row.get("iteration_time_s") or 0.0)
