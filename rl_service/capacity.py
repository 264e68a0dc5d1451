"""How many rollout workers the cluster has room for, or can get room for."""

from __future__ import annotations

import time

import ray
from ray._private.state import state as cluster_state

_LIFETIME_S = 5.0  # of an answer: asking takes some milliseconds


def obtainable_cpus() -> float:
    """CPUs of the cluster with all nodes that its autoscaler may bring; without one, of it now."""
    now = float(ray.cluster_resources().get("CPU", 0.0))
    # No public call tells; without an autoscaler that has reported, there is nothing to tell.
    most = cluster_state.get_max_resources_from_cluster_config() or {}
    return max(now, float(most.get("CPU", 0.0)))


class Capacity:
    """What is free for a training's workers; the answer is a few seconds old at most.

    Args:
        cpus_per_worker: logical CPUs of each.
    """

    def __init__(self, cpus_per_worker: float) -> None:
        self._cpus_per_worker = cpus_per_worker
        self._free_cpus, self._coming_cpus = 0.0, 0.0
        self._asked_at: float | None = None

    def placeable(self, num_ready: int, num_starting: int) -> int | None:
        """Workers that can be had, those that are there included; None if they take no CPU.

        Args:
            num_ready: workers that have their CPUs.
            num_starting: workers that have theirs or wait for some.
        """
        if self._cpus_per_worker == 0.0:
            return None
        self._ask()
        free = int(self._free_cpus / self._cpus_per_worker)
        # Whoever waits for a node is the demand for it already.
        coming = max(0, int(self._coming_cpus / self._cpus_per_worker) - num_starting)
        return num_ready + num_starting + free + coming

    def _ask(self) -> None:
        now = time.monotonic()
        if self._asked_at is None or now - self._asked_at > _LIFETIME_S:
            self._asked_at = now
            self._free_cpus = ray.available_resources().get("CPU", 0.0)
            self._coming_cpus = obtainable_cpus() - ray.cluster_resources().get("CPU", 0.0)
