"""Starts and ends a Ray cluster on this machine: a head and workers, each a node of its own."""

from __future__ import annotations

import json
import math
import os
import platform
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from rl_service.cluster import nodes, processes, state
from rl_service.cluster.autoscaling import (
    WORKER,
    autoscaler_config,
    autoscaler_environment,
    running_nodes,
)
from rl_service.cluster.dashboard import Dashboard
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
# Short, whatever TMPDIR says: Ray's sockets live below it, and their paths have 107 bytes.
_TMP = Path("/tmp")
_ROOM_BYTES = 500 * 2**20  # for logs and objects that are spilled
_LARGEST_STORE_BYTES, _SMALLEST_STORE_BYTES = 512 * 2**20, 80 * 2**20
_STORE_SHARE = 0.2  # of the free memory, for the object stores of all nodes together

Tell = Callable[[str], None]


def start_cluster(
    *,
    num_nodes: int,
    cpus_per_node: int | None,
    port: int,
    dashboard_port: int,
    tell: Tell,
    idle_timeout_s: float | None = None,
) -> LocalCluster:
    """Starts a cluster and waits until all its nodes are there; all of it, or nothing.

    Args:
        num_nodes: the head and its workers; with an autoscaler, at most.
        cpus_per_node: logical CPUs; None shares out the machine's.
        port: of Ray's own processes; 0 takes a free one.
        dashboard_port: of the dashboard and of jobs, on the loopback interface; 0 takes a free one.
        tell: receives what the user should know.
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
        _check_absent(tell)
        if idle_timeout_s is not None:
            _check_scaling(num_nodes, idle_timeout_s)
        cpus = _checked_cpus(num_nodes, cpus_per_node, tell)
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
        The cluster that was there, with the nodes that its autoscaler had brought; None if there
        was none.

    Raises:
        ClusterError: if some of its processes do not end, or it is another machine's.
    """
    with state.only_one():
        cluster = state.load_cluster()
        if cluster is None:
            return None
        check_is_visible(cluster)
        ended = cluster.model_copy(update={"nodes": running_nodes(cluster)})
        _clean_up(cluster)
        return ended


def is_up(cluster: LocalCluster) -> bool:
    """Whether the head runs; without it the rest is of no use."""
    return any(processes.is_running(cluster.id, node.pid) for node in cluster.nodes[:1])


def check_is_visible(cluster: LocalCluster) -> None:
    """Makes sure that a cluster whose processes are not here is dead.

    Raises:
        ClusterError: if another machine has started it, where they may well run.
    """
    if cluster.host != platform.node() and not is_up(cluster):
        raise ClusterError(
            f"the cluster in {state.state_path()} is that of {cluster.host}, and only there can be "
            f"told whether it runs; go there, set {state.HOME_VARIABLE} to a folder of this "
            f"machine's own, or remove the file if {cluster.host} is gone"
        )


def _check_absent(tell: Tell) -> None:
    cluster = state.load_cluster()
    if cluster is None:
        return
    if is_up(cluster):
        raise ClusterError(
            f"a local cluster of {len(running_nodes(cluster))} node(s) is up already at "
            f"{cluster.dashboard_url}; use it, or end it with rl-service cluster down"
        )
    check_is_visible(cluster)
    _clean_up(cluster)
    tell(f"the cluster of {cluster.started_at} was dead; cleaned up after it")


@uninterrupted()
def _clean_up(cluster: LocalCluster) -> None:
    if not processes.end_processes(cluster.id, [node.pid for node in running_nodes(cluster)]):
        left = ", ".join(map(str, processes.marked_processes(cluster.id)))
        raise ClusterError(f"processes {left} of the local cluster do not end; kill them yourself")
    shutil.rmtree(cluster.folder, ignore_errors=True)
    state.forget_cluster()


def _checked_cpus(num_nodes: int, cpus_per_node: int | None, tell: Tell) -> int:
    if num_nodes < 1 or (cpus_per_node is not None and cpus_per_node < 1):
        raise SettingsError("--nodes and --cpus-per-node must be at least 1")
    there = available_cpus()
    cpus = max(1, there // num_nodes) if cpus_per_node is None else cpus_per_node
    if num_nodes * cpus > there:
        tell(
            f"{num_nodes} node(s) with {cpus} CPU(s) each promise {num_nodes * cpus} CPUs, and "
            f"the machine has {there}: work on the cluster shares them and takes longer"
        )
    return cpus


def _check_scaling(num_nodes: int, idle_timeout_s: float) -> None:
    if num_nodes < 2:
        raise SettingsError("--max-nodes must be at least 2: the head, and a worker that may come")
    if not 0 < idle_timeout_s < math.inf:
        raise SettingsError(f"--idle-timeout-s must be above 0, not {idle_timeout_s:g}")


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


def _store_bytes(num_nodes: int) -> int:
    free = available_memory_bytes()
    if free is None:
        return _SMALLEST_STORE_BYTES
    share = int(free * _STORE_SHARE / num_nodes)
    return max(_SMALLEST_STORE_BYTES, min(_LARGEST_STORE_BYTES, share))


class _Start:
    """A cluster under way; its mark is on the disk before its first process, so none gets lost."""

    def __init__(
        self,
        num_nodes: int,
        num_cpus: int,
        port: int,
        dashboard_port: int,
        idle_timeout_s: float | None,
    ) -> None:
        self.num_cpus = num_cpus
        self.store_bytes = _store_bytes(num_nodes)
        autoscaling, num_now = None, num_nodes
        if idle_timeout_s is not None:
            autoscaling = Autoscaling(
                max_workers=num_nodes - 1, num_cpus=num_cpus, idle_timeout_s=idle_timeout_s
            )
            num_now = 1  # the others are the autoscaler's
        self.names = [nodes.HEAD, *(f"{WORKER}-{i}" for i in range(1, num_now))]
        self.port, self.dashboard_port = port, dashboard_port
        self.token_path = state.create_token()
        self.dashboard = Dashboard(
            f"http://127.0.0.1:{dashboard_port}", self.token_path.read_text(encoding="utf-8")
        )
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.commands: dict[str, list[str]] = {}
        self.tried_again: set[str] = set()
        self.cluster = LocalCluster(
            id=secrets.token_hex(8),
            address=f"127.0.0.1:{port}",
            dashboard_url=self.dashboard.url,
            folder=tempfile.mkdtemp(prefix="rlc-", dir=_TMP),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            nodes=[],
            autoscaling=autoscaling,
        )

    def run(self) -> LocalCluster:
        state.save_cluster(self.cluster)
        deadline = time.monotonic() + _START_TIMEOUT_S
        self._start(nodes.HEAD, self._head_command())
        self._wait(deadline, num_nodes=1)
        for name in self.names[1:]:
            self._start(name, self._worker_command(name))
        self._wait(deadline, num_nodes=len(self.names))
        return self.cluster

    def _head_command(self) -> list[str]:
        return nodes.head_command(
            port=self.port,
            dashboard_port=self.dashboard_port,
            client_port=usable_port("--port", 0, ALL_INTERFACES),
            num_cpus=self.num_cpus,
            store_bytes=self.store_bytes,
            folder=f"{self.cluster.folder}/ray",
            autoscaling_config=self._autoscaling_config(),
        )

    def _autoscaling_config(self) -> Path | None:
        if self.cluster.autoscaling is None:
            return None
        config = autoscaler_config(
            self.cluster, self.cluster.autoscaling, store_bytes=self.store_bytes
        )
        path = Path(self.cluster.folder, "autoscaling.json")
        path.write_text(json.dumps(config, indent=2), encoding="utf-8")
        return path

    def _worker_command(self, name: str) -> list[str]:
        return nodes.worker_command(
            name=name,
            address=self.cluster.address,
            num_cpus=self.num_cpus,
            store_bytes=self.store_bytes,
            folder=f"{self.cluster.folder}/{name}",
        )

    def _start(self, name: str, command: list[str]) -> None:
        environment = nodes.node_environment(self.cluster.id, name, self.token_path, os.environ)
        if self.cluster.autoscaling is not None:
            environment |= autoscaler_environment(name, nodes.HEAD)
        process = nodes.start_node(command, environment, self._log(name))
        self.processes[name], self.commands[name] = process, command
        node = Node(name=name, pid=process.pid, num_cpus=self.num_cpus)
        self.cluster = self.cluster.model_copy(update={"nodes": [*self.cluster.nodes, node]})
        state.save_cluster(self.cluster)

    def _wait(self, deadline: float, num_nodes: int) -> None:
        while time.monotonic() < deadline:
            ended = [name for name, process in self.processes.items() if process.poll() is not None]
            for name in ended:
                if name in self.tried_again or not nodes.was_given_up(self._log(name)):
                    raise nodes.failure(name, self._log(name))
                self._start_again(name)
            if _num_alive(self.dashboard) >= num_nodes:
                return
            time.sleep(0.2)
        raise ClusterError(
            f"the local cluster did not start in {_START_TIMEOUT_S:.0f} s; free memory and CPUs, "
            f"or give fewer --nodes, and try again"
        )

    def _start_again(self, name: str) -> None:
        self.tried_again.add(name)
        processes.kill_processes(self.cluster.id, name)  # what it has left
        others = [node for node in self.cluster.nodes if node.name != name]
        self.cluster = self.cluster.model_copy(update={"nodes": others})
        self._start(name, self.commands[name])

    def _log(self, name: str) -> Path:
        return Path(self.cluster.folder, f"{name}.log")


def _num_alive(dashboard: Dashboard) -> int:
    try:
        return sum(node["state"] == "ALIVE" for node in dashboard.nodes())
    except ClusterError:  # not yet
        return 0
