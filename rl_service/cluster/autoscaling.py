"""A local cluster whose worker nodes come and go: what its autoscaler is told, who is there."""

from __future__ import annotations

from typing import Any

from rl_service.cluster.nodes import HEAD
from rl_service.cluster.processes import node_leaders
from rl_service.cluster.state import Autoscaling, LocalCluster, Node

WORKER = "worker"
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
    cluster: LocalCluster, autoscaling: Autoscaling, *, store_bytes: int
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
            "cluster_id": cluster.id,
            "address": cluster.address,
            "folder": cluster.folder,
            "store_bytes": store_bytes,
            **autoscaling.model_dump(include={"num_cpus", "max_workers"}),
        },
    }


def autoscaler_environment(name: str, node_type: str) -> dict[str, str]:
    """What a node's environment has so that the autoscaler knows it again.

    Args:
        name: of the node, which also is its id for the autoscaler.
        node_type: `head` or `worker`.
    """
    return {
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": name,
        "RAY_NODE_TYPE_NAME": node_type,
    }


def running_nodes(cluster: LocalCluster) -> list[Node]:
    """The nodes that stay, dead or alive, and those that the autoscaler has brought, alive."""
    if cluster.autoscaling is None:
        return cluster.nodes
    staying = {node.name for node in cluster.nodes}
    brought = [
        Node(name=name, pid=pid, num_cpus=cluster.autoscaling.num_cpus)
        for name, pid in node_leaders(cluster.id).items()
        if name not in staying
    ]
    return [*cluster.nodes, *sorted(brought, key=lambda node: by_number(node.name))]


def by_number(name: str) -> tuple[int, str]:
    """Sorts `worker-10` after `worker-9`."""
    return len(name), name
