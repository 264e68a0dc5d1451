"""Nodes come for actors that wait, go when they are idle, and are replaced when they are killed."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_service.cluster.nodes import marked_processes
from tests.benchmarks.cluster_chaos import Victim, plan, unleash
from tests.support.clusters import UserCluster, wait_for

DRAINED_IDLE = 4
"""Ray's `DeathReason` of a node that the autoscaler has ended, and of no other."""

# Actors as trainings have, three where one has room, and answers to one word a line.
DRIVER = """\
import json, os, sys
import ray
from ray._private.state import state

out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # where Ray writes what it likes to say
ray.init(logging_level="error", log_to_driver=False)

@ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)
class VectorRolloutWorker:
    def where(self):
        return os.environ["RL_SERVICE_CLUSTER_NODE"], os.getpid()

workers = [VectorRolloutWorker.remote() for _ in range(3)]

def end():
    while workers:
        ray.kill(workers.pop())

answers = {
    "where": lambda: dict(ray.get([worker.where.remote() for worker in workers])),
    "deaths": lambda: {n["NodeName"]: n["DeathReason"] for n in ray.nodes() if not n["Alive"]},
    "most": lambda: state.get_max_resources_from_cluster_config(),
    "end": end,
}
for line in sys.stdin:
    print(json.dumps(answers[line.strip()]()), file=out, flush=True)
"""


class Driver:
    """A program in a process of its own, since it dies with the cluster."""

    def __init__(self, cluster: UserCluster) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER],
            env=cluster.ray_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, word: str) -> Any:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.fixture
def driver(scaling_cluster: UserCluster) -> Iterator[Driver]:
    driver = Driver(scaling_cluster)
    yield driver
    driver.process.kill()
    driver.process.communicate()


def test_actors_that_wait_bring_nodes_and_idle_nodes_go(
    scaling_cluster: UserCluster, driver: Driver
) -> None:
    assert scaling_cluster.nodes() == ["head"]
    assert driver.ask("most") == {"CPU": 3.0}
    names = set(driver.ask("where"))
    assert set(scaling_cluster.nodes()) == names
    assert len(names) == 3
    driver.ask("end")
    wait_for(lambda: scaling_cluster.nodes() == ["head"], "nodes that go")
    folders = [Path(scaling_cluster.state.folder, name) for name in names - {"head"}]
    wait_for(
        lambda: all(
            [f.name for f in folder.glob("session_2*/*")] == ["logs"] for folder in folders
        ),
        "folders with logs alone",
    )
    deaths = driver.ask("deaths")
    assert {deaths[name] for name in names - {"head"}} == {DRAINED_IDLE}


def test_what_is_killed_is_replaced_and_the_autoscaler_brings_another_node(
    scaling_cluster: UserCluster, driver: Driver
) -> None:
    before = driver.ask("where")
    kill = kill_one(scaling_cluster, "workers")
    assert before[kill.node] == kill.pid
    again = driver.ask("where")
    assert kill.pid not in again.values()
    assert len(again) == 3

    kill = kill_one(scaling_cluster, "nodes")
    assert kill.node in set(again) - {"head"}
    assert marked_processes(scaling_cluster.state.id, kill.node) == []
    after = driver.ask("where")  # waits for a node to start anew on
    [new] = set(after) - set(again)
    assert set(after) == {*again, new} - {kill.node}
    assert new in scaling_cluster.nodes()
    assert driver.ask("deaths")[kill.node] not in (0, DRAINED_IDLE)


def test_a_cluster_whose_head_was_killed_leaves_nothing_behind(
    scaling_cluster: UserCluster, driver: Driver
) -> None:
    assert len(driver.ask("where")) == 3
    state = scaling_cluster.state
    scaling_cluster.kill_node("head")
    assert "is dead; clean up" in scaling_cluster.refusal("cluster", "status")
    status, out, err = scaling_cluster.run("cluster", "down")
    assert status == 0, out + err
    assert marked_processes(state.id) == []
    assert not Path(state.folder).exists()


def kill_one(cluster: UserCluster, target: str) -> Victim:
    [victim] = unleash(cluster.state.id, target, itertools.islice(plan(0.5, seed=0), 1))
    assert victim is not None
    return victim
