"""How many rollout workers the cluster has room for, or can get room for."""

from __future__ import annotations

import os
import time

import ray
from ray._private.state import state as cluster_state

_LIFETIME_S = 5.0  # of an answer: asking takes some milliseconds


def cpus_now() -> float:
    """Logical CPUs of the nodes that there are."""
    return float(ray.cluster_resources().get("CPU", 0.0))


def coming_cpus() -> float | None:
    """CPUs of the nodes that the cluster's autoscaler may still bring; None if it does not tell.

    A Ray that this process has started gets no more nodes. On another cluster only the autoscaler
    knows; that of `rl-service cluster autoscale` tells, others do not.
    """
    most = cluster_state.get_max_resources_from_cluster_config()  # no public call tells
    if most is not None:
        return max(0.0, float(most.get("CPU", 0.0)) - cpus_now())
    return None if os.environ.get("RAY_ADDRESS") else 0.0


class Capacity:
    """What is free for a training's workers; the answer is a few seconds old at most.

    Args:
        cpus_per_worker: logical CPUs of each.
    """

    def __init__(self, cpus_per_worker: float) -> None:
        self._cpus_per_worker = cpus_per_worker
        self._free_cpus = 0.0
        self._coming_cpus: float | None = None
        self._asked_at: float | None = None

    def placeable(self, num_ready: int, num_starting: int) -> int | None:
        """Workers that can be had, those that are there included; None if nobody knows a bound.

        Args:
            num_ready: workers that have their CPUs.
            num_starting: workers that have theirs or wait for some.
        """
        if self._cpus_per_worker == 0.0:
            return None
        self._ask()
        if self._coming_cpus is None:
            return None
        free = int(self._free_cpus / self._cpus_per_worker)
        # Whoever waits for a node is the demand for it already.
        coming = max(0, int(self._coming_cpus / self._cpus_per_worker) - num_starting)
        return num_ready + num_starting + free + coming

    def _ask(self) -> None:
        now = time.monotonic()
        if self._asked_at is None or now - self._asked_at > _LIFETIME_S:
            self._asked_at = now
            self._free_cpus = ray.available_resources().get("CPU", 0.0)
            self._coming_cpus = coming_cpus()
