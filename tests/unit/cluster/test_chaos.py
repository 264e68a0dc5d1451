"""The plan of a seed is known before anything is killed, and only what is the cluster's dies."""

from __future__ import annotations

import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rl_service.cli.app import app, main
from rl_service.cluster import state
from rl_service.cluster.chaos import Moment, Victim, cluster_to_hurt, plan, unleash, victims
from rl_service.cluster.processes import CLUSTER_MARK, NODE_MARK, command_line
from rl_service.cluster.state import Autoscaling, LocalCluster, Node
from rl_service.errors import ClusterError

# What Ray's processes look like from outside: `ray start`, and an actor that named itself.
LEADER = "import time; time.sleep(100)  # ray.scripts.scripts start"
ACTOR = "exec -a ray::VectorRolloutWorker.sample sleep 100"
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

    def one(cluster: str, node: str, command: list[str], title: str) -> int:
        environment = {**os.environ, CLUSTER_MARK: cluster, NODE_MARK: node}
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        started.append(process)
        deadline = time.monotonic() + 60
        while title not in command_line(process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return process.pid

    yield one
    for process in started:
        process.kill()
        process.wait()


def leader(start: Start, cluster: str, node: str) -> int:
    return start(cluster, node, [sys.executable, "-c", LEADER], "ray.scripts")


def actor(start: Start, cluster: str, node: str) -> int:
    return start(cluster, node, ["bash", "-c", ACTOR], "ray::")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_SERVICE_HOME", str(tmp_path))
    return tmp_path


def local_cluster(pid: int, *, scales: bool = False) -> LocalCluster:
    cluster = LocalCluster(
        id="chaos",
        address="127.0.0.1:7000",
        dashboard_url="http://127.0.0.1:7001",
        folder="/tmp/none",
        started_at="2030-01-01T00:00:00+00:00",
        nodes=[Node(name="head", pid=pid, num_cpus=1)],
        autoscaling=Autoscaling(max_workers=2, num_cpus=1, idle_timeout_s=1) if scales else None,
    )
    state.save_cluster(cluster)
    return cluster


def test_workers_of_the_cluster_die_in_the_plan_s_order_and_nobody_else(
    start: Start, home: Path
) -> None:
    cluster = local_cluster(leader(start, "chaos", "head"))
    pids = sorted(actor(start, "chaos", node) for node in ("head", "worker-1", "worker-2"))
    other = actor(start, "another", "head")
    moments = iter([Moment(0.0, 0.5), Moment(0.1, 0.9), Moment(0.2, 0.0), Moment(0.3, 0.0)])
    done = [
        kill.victim and kill.victim.pid
        for kill in unleash(cluster, "workers", moments, duration_s=0.25)
    ]
    assert done == [pids[1], pids[2], pids[0]]
    assert victims(cluster, "workers") == []
    assert command_line(other).startswith("ray::VectorRolloutWorker")


def test_a_node_dies_with_all_that_is_on_it_and_the_head_never(start: Start, home: Path) -> None:
    head = leader(start, "chaos", "head")
    cluster = local_cluster(head)
    leaders = {name: leader(start, "chaos", name) for name in ("worker-10", "worker-9")}
    actor(start, "chaos", "worker-10")
    assert victims(cluster, "nodes") == [
        Victim(name, leaders[name]) for name in ("worker-9", "worker-10")
    ]
    [kill] = unleash(cluster, "nodes", iter([Moment(0.0, 0.6)]), max_kills=1)
    assert kill.victim == Victim("worker-10", leaders["worker-10"])
    assert victims(cluster, "workers") == []
    # After the last one there is no moment to wait for.
    [kill] = unleash(cluster, "nodes", iter([Moment(0.0, 0.0)]))
    assert kill.victim == Victim("worker-9", leaders["worker-9"])
    assert command_line(head)


def test_a_moment_without_a_victim_is_told_and_counts_as_no_kill(start: Start, home: Path) -> None:
    cluster = local_cluster(leader(start, "chaos", "head"), scales=True)
    kills = unleash(cluster, "nodes", plan(0.01, 0), max_kills=1)
    assert next(kills).victim is None
    pid = leader(start, "chaos", "worker-1")
    assert [kill.victim for kill in kills][-1] == Victim("worker-1", pid)


def test_chaos_refuses_where_there_is_nothing_to_kill(start: Start, home: Path) -> None:
    with pytest.raises(ClusterError, match="no local cluster is up"):
        cluster_to_hurt("workers")
    local_cluster(leader(start, "chaos", "head"))
    assert cluster_to_hurt("workers").id == "chaos"
    with pytest.raises(ClusterError, match="has no worker node, and the head is never killed"):
        cluster_to_hurt("nodes")


def test_the_command_ends_with_a_summary_also_if_the_cluster_ends(start: Start, home: Path) -> None:
    head = leader(start, "chaos", "head")
    local_cluster(head)
    pid = actor(start, "chaos", "worker-1")
    arguments = ["cluster", "chaos", "--every-s", "0.01", "--json"]
    result = CliRunner().invoke(app, [*arguments, "--kills", "1", "--seed", "5"])
    *_, told, summary = result.stdout.splitlines()
    assert f"killed rollout worker {pid} on worker-1" in result.stdout
    assert told == "killed 1 rollout worker(s) with seed 5"
    [kill] = json.loads(summary)["kills"]
    assert kill == {"at_s": round(next(plan(0.01, 5)).at_s, 3), "node": "worker-1", "pid": pid}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--every-s", "0"], "--every-s must be above 0, not 0; give seconds"),
        (["--duration-s", "nan"], "--duration-s must be above 0, not nan; give seconds"),
        (["--kills", "0"], "--kills"),
        (["--target", "head"], "--target"),
        ([], "no local cluster is up, and chaos kills nothing elsewhere; start one with"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["cluster", "chaos", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_ctrl_c_ends_chaos_with_its_summary(start: Start, home: Path) -> None:
    local_cluster(leader(start, "chaos", "head"))
    process = subprocess.Popen(
        [sys.executable, "-m", "rl_service.cli", "cluster", "chaos", "--every-s", "0.01"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert "no rollout worker to kill" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "killed 0 rollout worker(s) with seed 0; " in out.splitlines()[-1]
