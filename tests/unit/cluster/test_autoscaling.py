"""What the autoscaler is told, as Ray reads it, and which nodes it has brought."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.autoscaler._private.util import validate_config
from ray.autoscaler.v2.instance_manager.config import FileConfigReader

from rl_service.cluster.nodes import CLUSTER_MARK, NODE_MARK, command_line
from rl_service.cluster.provider import autoscaler_config
from rl_service.cluster.state import Autoscaling, LocalCluster, Node

# What `ray start` looks like from outside, with a child that looks alike.
LEADER = "import os, time; os.fork(); time.sleep(100)  # ray.scripts.scripts start"
AUTOSCALING = Autoscaling(max_workers=3, num_cpus=2, idle_timeout_s=6.0)
CLUSTER = LocalCluster(
    id="0123",
    address="127.0.0.1:7000",
    dashboard_url="http://127.0.0.1:7001",
    folder="/tmp/rlc-0123",
    started_at="2030-01-01T00:00:00+00:00",
    nodes=[Node(name="head", pid=1, num_cpus=2)],
    autoscaling=AUTOSCALING,
)


def test_ray_reads_limits_types_and_times_from_the_configuration(tmp_path: Path) -> None:
    config = autoscaler_config(CLUSTER, AUTOSCALING, 5)
    validate_config(config)
    path = tmp_path / "autoscaling.json"
    path.write_text(json.dumps(config))
    read = FileConfigReader(str(path), skip_content_hash=True).get_cached_autoscaling_config()
    types = read.get_node_type_configs()
    assert (types["worker"].max_worker_nodes, types["worker"].min_worker_nodes) == (3, 0)
    assert types["worker"].resources == types["head"].resources == {"CPU": 2}
    assert (read.get_head_node_type(), types["head"].max_worker_nodes) == ("head", 1)
    assert read.get_idle_timeout_s() == pytest.approx(6.0)
    assert read.disable_node_updaters()


@pytest.fixture
def leaders() -> Iterator[dict[str, int]]:
    """Nodes of CLUSTER that run, by name, with the process id of each one's leader."""
    processes = {}
    for name in ("head", "worker-10", "worker-9"):
        environment = {**os.environ, CLUSTER_MARK: CLUSTER.id, NODE_MARK: name}
        processes[name] = subprocess.Popen(
            [sys.executable, "-c", LEADER], env=environment, start_new_session=True
        )
    deadline = time.monotonic() + 60
    while not all("ray.scripts" in command_line(process.pid) for process in processes.values()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield {name: process.pid for name, process in processes.items()}
    for process in processes.values():
        os.killpg(process.pid, 9)
        process.wait()


def test_nodes_that_run_are_those_that_stay_and_those_that_were_brought(
    leaders: dict[str, int],
) -> None:
    assert CLUSTER.running_nodes() == [
        CLUSTER.nodes[0],
        Node(name="worker-9", pid=leaders["worker-9"], num_cpus=2),
        Node(name="worker-10", pid=leaders["worker-10"], num_cpus=2),
    ]
    without = CLUSTER.model_copy(update={"autoscaling": None})
    assert without.running_nodes() == CLUSTER.nodes
