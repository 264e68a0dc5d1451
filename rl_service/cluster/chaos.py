"""Kills rollout workers or nodes of the local cluster at random, so that trainings must survive it.

When and whom is a plan of its own, drawn from a seed; what is there decides only whose turn it is.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeVar

from rl_service.cluster import state
from rl_service.cluster.autoscaling import by_number
from rl_service.cluster.local import is_up
from rl_service.cluster.nodes import HEAD
from rl_service.cluster.processes import (
    command_line,
    kill_processes,
    marked_processes,
    node_leaders,
    node_of,
)
from rl_service.cluster.state import LocalCluster
from rl_service.errors import ClusterError

Target = Literal["workers", "nodes"]
_WORKER_TITLE = "ray::VectorRolloutWorker"  # Ray names processes after the actor's class

T = TypeVar("T")


class Moment(NamedTuple):
    """When something is to die, and how far down the list of what is there it stands."""

    at_s: float
    """Since the start."""
    share: float
    """In [0, 1)."""

    def pick(self, candidates: Sequence[T]) -> T | None:
        """One of them; None if there is none."""
        return candidates[int(self.share * len(candidates))] if candidates else None


class Victim(NamedTuple):
    node: str
    pid: int
    """Of the rollout worker, or of the `ray start` that leads the node."""


class Kill(NamedTuple):
    """What happened at a moment of the plan."""

    at_s: float
    """Since the start; as planned."""
    victim: Victim | None
    """None: there was nothing to kill."""


def plan(every_s: float, seed: int) -> Iterator[Moment]:
    """Moments without end, at exponentially distributed intervals: a Poisson process.

    Each takes the same two draws, so what is there never changes what comes later.

    Args:
        every_s: mean interval.
        seed: the same seed gives the same plan.
    """
    # Not NumPy's: Python promises that `random` gives the same numbers in every release.
    draw = random.Random(seed)
    at_s = 0.0
    while True:
        at_s += draw.expovariate(1.0 / every_s)
        yield Moment(at_s, draw.random())


def cluster_to_hurt(target: Target) -> LocalCluster:
    """The local cluster, if it has or can get what is to be killed.

    Raises:
        ClusterError: if none is up, or it never has a worker node.
    """
    cluster = state.load_cluster()
    if cluster is None or not is_up(cluster):
        raise ClusterError(
            "no local cluster is up, and chaos kills nothing elsewhere; start one with rl-service "
            "cluster up or cluster autoscale"
        )
    if _is_over(cluster, target):
        raise ClusterError(
            "the local cluster has no worker node, and the head is never killed; start one that "
            "has some: rl-service cluster down, then up --nodes 3"
        )
    return cluster


def victims(cluster: LocalCluster, target: Target) -> list[Victim]:
    """What could be killed now, in the order in which a moment's share counts.

    Rollout workers of all trainings on the cluster by process id; worker nodes by name.
    """
    if target == "workers":
        pids = sorted(marked_processes(cluster.id))
        return [Victim(node_of(pid), pid) for pid in pids if _is_rollout_worker(pid)]
    leaders = node_leaders(cluster.id)
    return [Victim(name, leaders[name]) for name in sorted(leaders, key=by_number) if name != HEAD]


def unleash(
    cluster: LocalCluster,
    target: Target,
    moments: Iterator[Moment],
    *,
    duration_s: float | None = None,
    max_kills: int | None = None,
) -> Iterator[Kill]:
    """Waits for each moment, kills, and tells; ends with the first limit that is reached.

    Also with the last worker node, if none can come in its place.

    Args:
        cluster: of `cluster_to_hurt`.
        target: what is killed.
        moments: of `plan`.
        duration_s: None: no limit.
        max_kills: None: no limit. A moment without anything to kill does not count.

    Raises:
        ClusterError: if the cluster ends meanwhile.
    """
    start = time.monotonic()
    num_killed = 0
    while (max_kills is None or num_killed < max_kills) and not _is_over(cluster, target):
        moment = next(moments)
        ends_at_s = moment.at_s if duration_s is None else min(moment.at_s, duration_s)
        _sleep_until(start + ends_at_s)
        if moment.at_s > ends_at_s:
            return
        if not is_up(cluster):
            raise ClusterError(
                "the local cluster has ended meanwhile; there is nothing left to kill"
            )
        victim = moment.pick(victims(cluster, target))
        if victim is not None:
            _kill(cluster, target, victim)
            num_killed += 1
        yield Kill(moment.at_s, victim)


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))


def _kill(cluster: LocalCluster, target: Target, victim: Victim) -> None:
    if target == "nodes":
        kill_processes(cluster.id, victim.node)
    else:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim.pid, signal.SIGKILL)


def _is_over(cluster: LocalCluster, target: Target) -> bool:
    """Whether there is nothing to kill and never will be."""
    return target == "nodes" and cluster.autoscaling is None and not victims(cluster, target)


def _is_rollout_worker(pid: int) -> bool:
    return command_line(pid).startswith(_WORKER_TITLE)
