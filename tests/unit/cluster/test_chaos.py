"""The plan of a seed is known before anything is killed, and only what is the cluster's dies."""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from rl_service.cluster.nodes import CLUSTER_MARK, NODE_MARK, command_line
from tests.benchmarks.cluster_chaos import Moment, Victim, plan, unleash, victims

# What Ray's processes look like from outside: `ray start`, and an actor that named itself.
LEADER = "import time; time.sleep(100)  # ray.scripts.scripts start"
ACTOR = "ray::VectorRolloutWorker.sample"
Start = Callable[..., int]


def test_a_seed_has_its_times_and_picks() -> None:
    # 0.84442… is the first number of that seed, and -30 ln(1 - 0.84442…) is 55.818.
    assert [
        (round(moment.at_s, 3), round(moment.share, 3))
        for moment in itertools.islice(plan(30.0, seed=0), 3)
    ] == [(55.818, 0.758), (72.19, 0.259), (93.668, 0.405)]
    assert next(plan(30.0, seed=1)) != next(plan(30.0, seed=0))


def test_intervals_are_those_of_a_poisson_process() -> None:
    times = [moment.at_s for moment in itertools.islice(plan(2.0, seed=3), 4000)]
    intervals = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert statistics.fmean(intervals) == pytest.approx(2.0, rel=0.05)
    assert statistics.pstdev(intervals) == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(("share", "picked"), [(0.0, "a"), (0.34, "b"), (0.999, "c")])
def test_a_share_picks_from_what_is_there(share: float, picked: str) -> None:
    assert Moment(0.0, share).pick(["a", "b", "c"]) == picked
    assert Moment(0.0, share).pick(["x"]) == "x"
    assert Moment(0.0, share).pick([]) is None


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes with the marks of a cluster's node, in sessions of their own."""
    started: list[subprocess.Popen[bytes]] = []

    def one(cluster: str, node: str, command: list[str], program: str) -> int:
        environment = {**os.environ, CLUSTER_MARK: cluster, NODE_MARK: node}
        process = subprocess.Popen(
            command, executable=program, env=environment, start_new_session=True
        )
        started.append(process)
        return process.pid

    yield one
    for process in started:
        process.kill()
        process.wait()


def leader(start: Start, cluster: str, node: str) -> int:
    return start(cluster, node, [sys.executable, "-c", LEADER], sys.executable)


def actor(start: Start, cluster: str, node: str) -> int:
    return start(cluster, node, [ACTOR, "100"], shutil.which("sleep"))


def test_workers_of_the_cluster_die_in_the_plan_s_order_and_nobody_else(start: Start) -> None:
    pids = sorted(actor(start, "chaos", node) for node in ("head", "worker-1", "worker-2"))
    other = actor(start, "another", "head")
    moments = iter([Moment(0.0, 0.5), Moment(0.1, 0.9), Moment(0.2, 0.0)])
    done = [victim and victim.pid for victim in unleash("chaos", "workers", moments)]
    assert done == [pids[1], pids[2], pids[0]]
    deadline = time.monotonic() + 60
    while victims("chaos", "workers"):  # a killed process takes a moment to go
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert command_line(other).startswith("ray::VectorRolloutWorker")


def test_a_node_dies_with_all_that_is_on_it_and_the_head_never(start: Start) -> None:
    head = leader(start, "chaos", "head")
    leaders = {name: leader(start, "chaos", name) for name in ("worker-10", "worker-9")}
    actor(start, "chaos", "worker-10")
    assert victims("chaos", "nodes") == [
        Victim(name, leaders[name]) for name in ("worker-9", "worker-10")
    ]
    moments = iter([Moment(0.0, 0.6), Moment(0.1, 0.0), Moment(0.2, 0.0)])
    first, second, none = unleash("chaos", "nodes", moments)
    assert first == Victim("worker-10", leaders["worker-10"])
    assert second == Victim("worker-9", leaders["worker-9"])
    assert none is None
    assert victims("chaos", "workers") == []
    assert command_line(head)
