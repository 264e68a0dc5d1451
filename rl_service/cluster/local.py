"""A Ray cluster on this machine, a head and workers, each a node of its own: start, status, end."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from rl_service.cluster import nodes, state
from rl_service.cluster.dashboard import local_dashboard
from rl_service.cluster.nodes import HEAD, WORKER
from rl_service.cluster.state import Autoscaling, LocalCluster, Node
from rl_service.common.errors import ClusterError, ResourceError, SettingsError
from rl_service.runtime.machine import (
    ALL_INTERFACES,
    LOOPBACK,
    available_cpus,
    available_memory_bytes,
    usable_port,
)
from rl_service.runtime.signals import uninterrupted

_START_TIMEOUT_S = 180.0
# Short, whatever TMPDIR says: Ray's sockets are below it, and their paths have 107 bytes.
_TMP = Path("/tmp")
_ROOM_BYTES = 500 * 2**20  # for logs and objects that are spilled
_LARGEST_STORE_BYTES, _SMALLEST_STORE_BYTES = 512 * 2**20, 80 * 2**20
_STORE_SHARE = 0.2  # of the free memory, for the object stores of all nodes together


def start_cluster(
    *,
    num_nodes: int,
    cpus_per_node: int | None,
    port: int,
    dashboard_port: int,
    on_message: Callable[[str], None],
    idle_timeout_s: float | None = None,
) -> LocalCluster:
    """Starts a cluster and waits until all its nodes are there; all of it, or nothing.

    Args:
        num_nodes: the head and its workers; with an autoscaler, at most.
        cpus_per_node: logical CPUs; None shares out the machine's.
        port: of Ray's own processes; 0 takes a free one.
        dashboard_port: of the dashboard and of jobs, on the loopback interface; 0 takes a free one.
        on_message: receives what the user should know.
        idle_timeout_s: None: the workers start now and stay. Else the head starts alone, with an
            autoscaler that starts workers when work waits for CPUs, and ends those that were idle
            for so long.

    Raises:
        ClusterError: if one is up already, here or on another machine, or a node does not start.
        OutputError: if the state cannot be written.
        ResourceError: if there is no room.
        SettingsError: if numbers make no sense or ports are taken.
    """
    with state.only_one():
        _clean_up_dead_cluster(on_message)
        if idle_timeout_s is not None:
            _check_scaling(num_nodes, idle_timeout_s)
        cpus = _checked_cpus(num_nodes, cpus_per_node, on_message)
        ports = (
            usable_port("--port", port, ALL_INTERFACES),
            usable_port("--dashboard-port", dashboard_port, LOOPBACK),
        )
        _check_room()
        start = _Start(num_nodes, cpus, *ports, idle_timeout_s)
        try:
            return start.run()
        except BaseException:
            _clean_up(start.cluster)
            raise


def end_cluster() -> LocalCluster | None:
    """Ends the local cluster with everything that runs on it, and nothing else.

    Returns:
        The cluster that was there, with the nodes that its autoscaler had started; None if there
        was none.

    Raises:
        ClusterError: if some of its processes do not end, or it is another machine's.
    """
    with state.only_one():
        cluster = state.load_cluster()
        if cluster is None:
            return None
        cluster.check_is_visible()
        ended = cluster.model_copy(update={"nodes": cluster.running_nodes()})
        _clean_up(cluster)
        return ended


def _clean_up_dead_cluster(on_message: Callable[[str], None]) -> None:
    cluster = state.load_cluster()
    if cluster is None:
        return
    if cluster.is_up:
        raise ClusterError(
            f"a local cluster of {len(cluster.running_nodes())} node(s) is up already at "
            f"{cluster.dashboard_url}; use it, or end it with rl-service cluster down"
        )
    cluster.check_is_visible()
    _clean_up(cluster)
    on_message(f"the cluster of {cluster.started_at} was dead; cleaned up after it")


@uninterrupted()
def _clean_up(cluster: LocalCluster) -> None:
    if not nodes.end_processes(cluster.id, [node.pid for node in cluster.running_nodes()]):
        left = ", ".join(map(str, nodes.marked_processes(cluster.id)))
        raise ClusterError(f"processes {left} of the local cluster do not end; kill them yourself")
    shutil.rmtree(cluster.folder, ignore_errors=True)
    state.forget_cluster()


def _check_scaling(num_nodes: int, idle_timeout_s: float) -> None:
    if num_nodes < 2:
        raise SettingsError("--max-nodes must be at least 2: the head, and a worker that may come")
    if not 0 < idle_timeout_s < math.inf:
        raise SettingsError(f"--idle-timeout-s must be above 0, not {idle_timeout_s:g}")


def _checked_cpus(
    num_nodes: int, cpus_per_node: int | None, on_message: Callable[[str], None]
) -> int:
    if num_nodes < 1 or (cpus_per_node is not None and cpus_per_node < 1):
        raise SettingsError("--nodes and --cpus-per-node must be at least 1")
    there = available_cpus()
    cpus = max(1, there // num_nodes) if cpus_per_node is None else cpus_per_node
    if num_nodes * cpus > there:
        on_message(
            f"{num_nodes} node(s) with {cpus} CPU(s) each promise {num_nodes * cpus} CPUs, and "
            f"the machine has {there}: work on the cluster shares them and takes longer"
        )
    return cpus


def _check_room() -> None:
    try:
        free = shutil.disk_usage(_TMP).free
    except OSError as error:
        raise ResourceError(f"Ray needs {_TMP}, which cannot be used: {error.strerror}") from error
    if free < _ROOM_BYTES:
        raise ResourceError(
            f"{_TMP} has {free / 2**20:.0f} MiB left, and a cluster needs {_ROOM_BYTES // 2**20} "
            f"MiB for logs and objects; free some space"
        )


class _Start:
    """A start in progress; the cluster's mark is on the disk before its first process exists.

    Args:
        num_nodes: the head and its workers.
        num_cpus: of each.
        port: of Ray's own processes.
        dashboard_port: of the dashboard.
        idle_timeout_s: None starts the workers; else they are the autoscaler's.
    """

    def __init__(
        self,
        num_nodes: int,
        num_cpus: int,
        port: int,
        dashboard_port: int,
        idle_timeout_s: float | None,
    ) -> None:
        self.num_nodes_now, self.num_cpus = num_nodes, num_cpus
        self.port, self.dashboard_port = port, dashboard_port
        free_bytes = available_memory_bytes() or 0
        share_bytes = int(free_bytes * _STORE_SHARE / num_nodes)
        self.store_bytes = max(_SMALLEST_STORE_BYTES, min(_LARGEST_STORE_BYTES, share_bytes))
        autoscaling = None
        if idle_timeout_s is not None:
            self.num_nodes_now = 1
            autoscaling = Autoscaling(
                max_workers=num_nodes - 1, num_cpus=num_cpus, idle_timeout_s=idle_timeout_s
            )
        self.token_path = state.create_token()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.commands: dict[str, list[str]] = {}
        self.tried_again: set[str] = set()
        self.cluster = LocalCluster(
            id=secrets.token_hex(8),
            address=f"{LOOPBACK}:{port}",
            dashboard_url=f"http://{LOOPBACK}:{dashboard_port}",
            folder=tempfile.mkdtemp(prefix="rlc-", dir=_TMP),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            nodes=[],
            autoscaling=autoscaling,
        )
        self.dashboard = local_dashboard(self.cluster)

    def run(self) -> LocalCluster:
        state.save_cluster(self.cluster)
        deadline = time.monotonic() + _START_TIMEOUT_S
        head = nodes.head_command(
            port=self.port,
            dashboard_port=self.dashboard_port,
            client_port=usable_port("--port", 0, ALL_INTERFACES),
            num_cpus=self.num_cpus,
            store_bytes=self.store_bytes,
            folder=f"{self.cluster.folder}/ray",
            autoscaling_config=self._autoscaling_config(),
        )
        self._start(HEAD, head)
        self._wait(deadline, num_nodes=1)
        for i in range(1, self.num_nodes_now):
            name = f"{WORKER}-{i}"
            worker = nodes.worker_command(
                name=name,
                address=self.cluster.address,
                num_cpus=self.num_cpus,
                store_bytes=self.store_bytes,
                folder=f"{self.cluster.folder}/{name}",
            )
            self._start(name, worker)
        self._wait(deadline, self.num_nodes_now)
        return self.cluster

    def _autoscaling_config(self) -> Path | None:
        if self.cluster.autoscaling is None:
            return None
        from rl_service.cluster.provider import autoscaler_config  # imports Ray

        config = autoscaler_config(self.cluster, self.cluster.autoscaling, self.store_bytes)
        path = Path(self.cluster.folder, "autoscaling.json")
        path.write_text(json.dumps(config, indent=2), encoding="utf-8")
        return path

    def _start(self, name: str, command: list[str]) -> None:
        environment = nodes.node_environment(self.cluster.id, name, self.token_path, os.environ)
        if self.cluster.autoscaling is not None:
            environment |= nodes.autoscaler_environment(name, HEAD)
        process = nodes.start_node(command, environment, self._log(name))
        self.processes[name], self.commands[name] = process, command
        node = Node(name=name, pid=process.pid, num_cpus=self.num_cpus)
        others = [other for other in self.cluster.nodes if other.name != name]
        self.cluster = self.cluster.model_copy(update={"nodes": [*others, node]})
        state.save_cluster(self.cluster)

    def _wait(self, deadline: float, num_nodes: int) -> None:
        while time.monotonic() < deadline:
            ended = [name for name, process in self.processes.items() if process.poll() is not None]
            for name in ended:
                if name in self.tried_again or not nodes.was_given_up(self._log(name)):
                    raise nodes.start_failure(name, self._log(name))
                self.tried_again.add(name)
                nodes.kill_processes(self.cluster.id, name)  # what it has left
                self._start(name, self.commands[name])
            with contextlib.suppress(ClusterError):  # no dashboard yet
                if sum(node["state"] == "ALIVE" for node in self.dashboard.nodes()) >= num_nodes:
                    return
            time.sleep(0.2)
        raise ClusterError(
            f"the local cluster did not start in {_START_TIMEOUT_S:.0f} s; free memory and CPUs, "
            f"or give fewer --nodes, and try again"
        )

    def _log(self, name: str) -> Path:
        return Path(self.cluster.folder, f"{name}.log")


class NodeStatus(NamedTuple):
    name: str
    alive: bool
    cpus_used: float
    cpus: float
    gpus_used: float
    gpus: float
    node_id: str | None
    """Ray's; None if Ray does not know the node yet."""
    pid: int


class ClusterStatus(NamedTuple):
    address: str
    dashboard_url: str
    folder: str
    started_at: str
    nodes: list[NodeStatus]
    jobs: dict[str, int]
    """How many jobs are `RUNNING`, `SUCCEEDED`, …"""


def cluster_status() -> ClusterStatus | None:
    """Asks the local cluster; None if there is none.

    Raises:
        ClusterError: if there is one and it does not answer, or it is another machine's.
    """
    cluster = state.load_cluster()
    if cluster is None:
        return None
    cluster.check_is_visible()
    if not cluster.is_up:
        raise ClusterError(
            f"the local cluster of {cluster.started_at} is dead; clean up with rl-service cluster "
            f"down, or start a new one with rl-service cluster up"
        )
    dashboard = local_dashboard(cluster)
    known = _by_name(dashboard.nodes())
    usage: Any = dashboard.get("/api/cluster_status")
    for key in ("data", "clusterStatus", "loadMetricsReport", "usageByNode"):
        usage = usage.get(key) or {}
    return ClusterStatus(
        cluster.address,
        cluster.dashboard_url,
        cluster.folder,
        cluster.started_at,
        [_node_status(cluster, node, known, usage) for node in cluster.running_nodes()],
        dict(Counter(job["status"] for job in dashboard.jobs())),
    )


def _node_status(
    cluster: LocalCluster,
    node: Node,
    known: dict[str, dict[str, Any]],
    usage: dict[str, dict[str, list[float]]],
) -> NodeStatus:
    """One node, out of Ray's nodes by name and of `[used, there]` by node id and resource."""
    row = known.get(node.name, {})
    node_id = row.get("node_id")
    alive = row.get("state") == "ALIVE" and nodes.is_running(cluster.id, node.pid)
    used = usage.get(node_id or "", {}) if alive else {}
    cpus_used, cpus = used.get("CPU", [0.0, float(node.num_cpus)])
    gpus_used, gpus = used.get("GPU", [0.0, 0.0])
    return NodeStatus(node.name, alive, cpus_used, cpus, gpus_used, gpus, node_id, node.pid)


def _by_name(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of rows with one name that which is alive: a node that was started again keeps its name."""
    return {row["node_name"]: row for row in sorted(rows, key=lambda row: row["state"] == "ALIVE")}
