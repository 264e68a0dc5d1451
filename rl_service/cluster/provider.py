"""Where Ray's autoscaler gets nodes from on one machine: each is a `ray start` of its own.

The autoscaler's process, which the head starts, imports this; it decides when, we do how.
"""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path
from typing import Any

from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled
from ray.autoscaler.node_provider import NodeProvider
from ray.autoscaler.tags import NODE_KIND_HEAD, TAG_RAY_NODE_KIND, TAG_RAY_USER_NODE_TYPE
from ray.core.generated.autoscaler_pb2 import ClusterConfig, NodeGroupConfig

from rl_service.cluster import nodes
from rl_service.cluster.autoscaling import WORKER, autoscaler_environment
from rl_service.cluster.processes import NODE_MARK, kill_processes


class LocalNodeProvider(NodeProvider):  # type: ignore[misc]
    """Starts and ends nodes with the cluster's marks, as `rl_service.cluster.local` does.

    A node's name is its id here and is never used twice. A node whose `ray start` has ended is
    gone, whoever ended it, so the autoscaler brings another if there is work for it.

    Args:
        provider_config: of `rl_service.cluster.autoscaling.autoscaler_config`.
        cluster_name: the cluster's id.
    """

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self._lock = threading.Lock()  # the autoscaler asks from several threads
        self._num_started = 0
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        head = {TAG_RAY_NODE_KIND: NODE_KIND_HEAD, TAG_RAY_USER_NODE_TYPE: nodes.HEAD}
        self._tags: dict[str, dict[str, str]] = {nodes.HEAD: head}
        self._publish_limits()

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        """Names of the nodes that run and have these tags."""
        with self._lock:
            self._forget_ended()
            return [
                name for name, tags in self._tags.items() if tag_filters.items() <= tags.items()
            ]

    def is_running(self, node_id: str) -> bool:
        with self._lock:
            return node_id in self._tags

    def is_terminated(self, node_id: str) -> bool:
        return not self.is_running(node_id)

    def node_tags(self, node_id: str) -> dict[str, str]:
        with self._lock:
            return self._tags.get(node_id, {})

    def create_node_with_resources_and_labels(
        self,
        node_config: dict[str, Any],
        tags: dict[str, str],
        count: int,
        resources: dict[str, float],
        labels: dict[str, str],
    ) -> None:
        """Starts nodes and does not wait for them; Ray tells the autoscaler when they are there."""
        for _ in range(count):
            with self._lock:
                self._num_started += 1
                name = f"{WORKER}-{self._num_started}"
                self._processes[name] = self._start(name)
                self._tags[name] = dict(tags)

    def terminate_node(self, node_id: str) -> None:
        """Ends a node with all its processes."""
        with self._lock:
            self._tags.pop(node_id, None)
            process = self._processes.pop(node_id, None)
        if process is None:
            return
        self._clear(node_id)  # the autoscaler has drained it before
        process.wait()

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        config = self.provider_config
        command = nodes.worker_command(
            name=name,
            address=config["address"],
            num_cpus=config["num_cpus"],
            store_bytes=config["store_bytes"],
            folder=str(self._folder(name)),
        )
        # The rest, with the cluster's mark and its token, is the head's own.
        environment = {**os.environ, NODE_MARK: name, **autoscaler_environment(name, WORKER)}
        return nodes.start_node(command, environment, Path(config["folder"], f"{name}.log"))

    def _forget_ended(self) -> None:
        ended = [name for name, process in self._processes.items() if process.poll() is not None]
        for name in ended:
            del self._tags[name], self._processes[name]
            self._clear(name)  # of what a killed leader has left

    def _clear(self, name: str) -> None:
        kill_processes(self.cluster_name, name)
        nodes.keep_only_logs(self._folder(name))

    def _folder(self, name: str) -> Path:
        return Path(self.provider_config["folder"], name)

    def _publish_limits(self) -> None:
        """Lets a program ask Ray how much there can be at most; Ray's own providers do not tell."""
        resources = {"CPU": self.provider_config["num_cpus"]}
        limits = {nodes.HEAD: 1, WORKER: self.provider_config["max_workers"]}
        groups = [
            NodeGroupConfig(name=name, resources=resources, max_count=count)
            for name, count in limits.items()
        ]
        config = ClusterConfig(node_group_configs=groups)
        GcsClient(address=self.provider_config["address"]).report_cluster_config(
            config.SerializeToString()
        )
