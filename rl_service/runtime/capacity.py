"""How many rollout workers the cluster has room for, or can get room for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import ray
from ray._private.state import available_resources_per_node
from ray._private.state import state as cluster_state

OWN_RAY = "RL_SERVICE_OWN_RAY"
"""Variable of the processes of a Ray that a command of ours has started for itself."""

_LIFETIME_S = 5.0  # of an answer: asking takes some milliseconds
_MEMORY_S = 60.0  # a process takes up to a minute to start on a cold or busy node


def cpus_now() -> float:
    """Logical CPUs of the nodes that there are."""
    return float(ray.cluster_resources().get("CPU", 0.0))


def coming_cpus() -> float | None:
    """CPUs of the nodes that the cluster's autoscaler may still bring; None if it does not tell.

    A Ray of one's own gets no more nodes. On another cluster only the autoscaler knows; that of
    `rl-service cluster autoscale` tells, others do not.
    """
    most = cluster_state.get_max_resources_from_cluster_config()  # no public call tells
    if most is not None:
        return max(0.0, float(most.get("CPU", 0.0)) - cpus_now())
    return None if _is_foreign() else 0.0


def _is_foreign() -> bool:
    """Whether others have started this Ray. What it starts itself has its node's variables."""
    is_driver = ray.get_runtime_context().get_actor_id() is None
    return bool(os.environ.get("RAY_ADDRESS")) if is_driver else OWN_RAY not in os.environ


class Capacity:
    """Room for a training's workers; the answer is a few seconds old at most.

    Args:
        cpus_per_worker: logical CPUs of each.
        count_held: workers that have their CPUs, or whose CPUs are kept for them.
    """

    def __init__(self, cpus_per_worker: float, count_held: Callable[[], int]) -> None:
        self._cpus_per_worker = cpus_per_worker
        self._count_held = count_held
        self._answers: list[tuple[float, int | None]] = []
        """When Ray was asked, and what followed."""

    def placeable(self) -> int | None:
        """Workers that can be had, those that are there included; None if nobody knows a bound.

        The largest answer of the last minute: the CPUs of a worker that has just died, or whose
        process is being started, are for a while neither free nor known to be its own.
        """
        if self._cpus_per_worker == 0.0:
            return None
        now = time.monotonic()
        if not self._answers or now - self._answers[-1][0] > _LIFETIME_S:
            recent = [answer for answer in self._answers if now - answer[0] < _MEMORY_S]
            self._answers = [*recent, (now, self._ask())]
        known = [workers for _, workers in self._answers if workers is not None]
        return max(known) if self._answers[-1][1] is not None else None

    def _ask(self) -> int | None:
        coming = coming_cpus()
        if coming is None:
            return None
        # A worker needs a node that has all its CPUs.
        free = [node.get("CPU", 0.0) for node in available_resources_per_node().values()]
        return self._count_held() + sum(self._workers_on(cpus) for cpus in [*free, coming])

    def _workers_on(self, cpus: float) -> int:
        return int(cpus / self._cpus_per_worker + 1e-6)  # 0.3 / 0.1 is less than 3
