"""Kills rollout workers or nodes of the local cluster at random, to see trainings survive it.

python -m tests.benchmarks.cluster_chaos nodes --every-s 60 --kills 3 --seed 7

Intervals are exponentially distributed. The same seed gives the same moments, and at each the same
place in the list of what is there: rollout workers of all trainings by process id, nodes by name.
The head is never killed. Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from rl_service.cluster import state
from rl_service.cluster.nodes import (
    HEAD,
    by_number,
    command_line,
    kill_processes,
    marked_processes,
    node_leaders,
    node_of,
)

TARGETS = ("workers", "nodes")
_WORKER_TITLE = "ray::VectorRolloutWorker"  # Ray names processes after the actor's class

T = TypeVar("T")


class Moment(NamedTuple):
    """When something dies, and where it stands in the list of what is there."""

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


def plan(every_s: float, seed: int) -> Iterator[Moment]:
    """Moments without end, at exponentially distributed intervals: a Poisson process.

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


def victims(cluster_id: str, target: str) -> list[Victim]:
    """What could be killed now, in the order in which a moment's share counts."""
    if target == "workers":
        pids = sorted(marked_processes(cluster_id))
        workers = [pid for pid in pids if command_line(pid).startswith(_WORKER_TITLE)]
        return [Victim(node_of(pid), pid) for pid in workers]
    leaders = node_leaders(cluster_id)
    return [Victim(name, leaders[name]) for name in sorted(leaders, key=by_number) if name != HEAD]


def unleash(cluster_id: str, target: str, moments: Iterator[Moment]) -> Iterator[Victim | None]:
    """Waits for each moment and kills; None where there was nothing to kill."""
    start = time.monotonic()
    for moment in moments:
        time.sleep(max(0.0, start + moment.at_s - time.monotonic()))
        victim = moment.pick(victims(cluster_id, target))
        if victim is not None and target == "nodes":
            kill_processes(cluster_id, victim.node)
        elif victim is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGKILL)
        yield victim


def main() -> None:
    """Kills until `--kills` is reached."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--every-s", type=float, default=30.0, help="mean seconds between kills")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    cluster = state.load_cluster()
    if cluster is None:
        parser.error("no local cluster is up; start one with rl-service cluster up or autoscale")
    num_killed = 0
    for victim in unleash(cluster.id, arguments.target, plan(arguments.every_s, arguments.seed)):
        sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {victim or 'nothing to kill'}\n")
        sys.stdout.flush()
        num_killed += victim is not None
        if num_killed == arguments.kills:
            return


if __name__ == "__main__":
    main()
