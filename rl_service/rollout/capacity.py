"""How many rollout workers the cluster has room for, or can get room for."""

from __future__ import annotations

import time

import ray

_LIFETIME_S = 5.0  # of an answer: asking takes a millisecond or two


class Capacity:
    """What is free for a training's workers; the answer is a few seconds old at most.

    Args:
        cpus_per_worker: logical CPUs of each.
    """

    def __init__(self, cpus_per_worker: float) -> None:
        self._cpus_per_worker = cpus_per_worker
        self._free_cpus = 0.0
        self._asked_at: float | None = None

    def placeable(self, num_ready: int) -> int | None:
        """Workers that can be had, those that are ready included; None without a bound."""
        if self._cpus_per_worker == 0.0:
            return None
        now = time.monotonic()
        if self._asked_at is None or now - self._asked_at > _LIFETIME_S:
            self._asked_at, self._free_cpus = now, _free_cpus()
        return num_ready + int(self._free_cpus / self._cpus_per_worker)
