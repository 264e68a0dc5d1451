"""Where Ray's autoscaler gets nodes from on one machine: each is a `ray start` of its own.

The head starts the autoscaler's process, which reads the configuration and imports the provider. It
decides when a node starts or ends; the provider does it.
"""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path
from typing import Any

from ray.autoscaler.node_provider import NodeProvider
from ray.autoscaler.tags import NODE_KIND_HEAD, TAG_RAY_NODE_KIND, TAG_RAY_USER_NODE_TYPE
from ray.core.generated.autoscaler_pb2 import ClusterConfig, NodeGroupConfig

from rl_service.cluster import nodes
from rl_service.cluster.nodes import HEAD, NODE_MARK, WORKER
from rl_service.cluster.state import Autoscaling, LocalCluster
from rl_service.runtime.ray_session import report_cluster_config

_PROVIDER = "rl_service.cluster.provider.LocalNodeProvider"
# Keys that Ray's defaults for providers of others leave out, and then asks for.
_NO_COMMANDS: dict[str, Any] = {
    "auth": {},
    "docker": {},
    "file_mounts": {},
    "cluster_synced_files": [],
    "initialization_commands": [],
    "setup_commands": [],
    "head_setup_commands": [],
    "worker_setup_commands": [],
    "head_start_ray_commands": [],
    "worker_start_ray_commands": [],
    "rsync_exclude": [],
    "rsync_filter": [],
}


def autoscaler_config(
    cluster: LocalCluster, autoscaling: Autoscaling, store_bytes: int
) -> dict[str, Any]:
    """What `ray start --head --autoscaling-config` reads.

    Args:
        cluster: with the address and folder that it will have.
        autoscaling: of its worker nodes.
        store_bytes: of each node's object store.
    """
    resources = {"CPU": autoscaling.num_cpus}
    return {
        **_NO_COMMANDS,
        "cluster_name": cluster.id,
        "max_workers": autoscaling.max_workers,
        "idle_timeout_minutes": autoscaling.idle_timeout_s / 60,
        "head_node_type": HEAD,
        "available_node_types": {
            HEAD: {"resources": resources, "node_config": {}, "max_workers": 0},
            WORKER: {
                "resources": resources,
                "node_config": {},
                "min_workers": 0,
                "max_workers": autoscaling.max_workers,
            },
        },
        "provider": {
            "type": "external",
            "module": _PROVIDER,
            "disable_node_updaters": True,  # nothing is to be installed on this machine
            "disable_launch_config_check": True,
            "address": cluster.address,
            "folder": cluster.folder,
            "store_bytes": store_bytes,
            **autoscaling.model_dump(include={"num_cpus", "max_workers"}),
        },
    }


class LocalNodeProvider(NodeProvider):  # type: ignore[misc]
    """Starts and ends nodes with the cluster's marks, as `rl_service.cluster.local` does.

    A node's name is its id here and is never used twice. A node whose `ray start` has ended is
    gone, whoever ended it, so the autoscaler starts another if there is work for it.

    Args:
        provider_config: the `provider` of `autoscaler_config`.
        cluster_name: the cluster's id.
    """

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self._lock = threading.Lock()  # the autoscaler asks from several threads
        self._num_started = 0
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        head = {TAG_RAY_NODE_KIND: NODE_KIND_HEAD, TAG_RAY_USER_NODE_TYPE: HEAD}
        self._tags: dict[str, dict[str, str]] = {HEAD: head}
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
        """Starts nodes without waiting for them; the autoscaler hears of them from Ray."""
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
        environment = {**os.environ, NODE_MARK: name, **nodes.autoscaler_environment(name, WORKER)}
        return nodes.start_node(command, environment, Path(config["folder"], f"{name}.log"))

    def _forget_ended(self) -> None:
        ended = [name for name, process in self._processes.items() if process.poll() is not None]
        for name in ended:
            del self._tags[name], self._processes[name]
            self._clear(name)  # of what a killed leader has left

    def _clear(self, name: str) -> None:
        nodes.kill_processes(self.cluster_name, name)
        nodes.keep_only_logs(self._folder(name))

    def _folder(self, name: str) -> Path:
        return Path(self.provider_config["folder"], name)

    def _publish_limits(self) -> None:
        """Lets a program ask Ray how much there can be at most; Ray's own providers do not say."""
        resources = {"CPU": self.provider_config["num_cpus"]}
        limits = {HEAD: 1, WORKER: self.provider_config["max_workers"]}
        groups = [
            NodeGroupConfig(name=name, resources=resources, max_count=count)
            for name, count in limits.items()
        ]
        config = ClusterConfig(node_group_configs=groups)
        report_cluster_config(self.provider_config["address"], config.SerializeToString())
