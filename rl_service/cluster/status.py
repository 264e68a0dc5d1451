"""What a local cluster is doing: its nodes, the resources in use, its jobs."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from rl_service.cluster import state
from rl_service.cluster.autoscaling import running_nodes
from rl_service.cluster.dashboard import Dashboard
from rl_service.cluster.local import check_is_visible, is_up
from rl_service.cluster.processes import is_running
from rl_service.cluster.state import LocalCluster, Node
from rl_service.common.errors import ClusterError


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
    check_is_visible(cluster)
    if not is_up(cluster):
        raise ClusterError(
            f"the local cluster of {cluster.started_at} is dead; clean up with rl-service cluster "
            f"down, or start a new one with rl-service cluster up"
        )
    dashboard = local_dashboard(cluster)
    known = _by_name(dashboard.nodes())
    usage = _usage_by_node(dashboard)
    return ClusterStatus(
        cluster.address,
        cluster.dashboard_url,
        cluster.folder,
        cluster.started_at,
        [
            _node_status(cluster, node, known.get(node.name), usage)
            for node in running_nodes(cluster)
        ],
        _count_jobs(dashboard),
    )


def local_dashboard(cluster: LocalCluster) -> Dashboard:
    """The dashboard of the local cluster, with its token.

    Raises:
        ClusterError: if the token cannot be read.
    """
    path = state.token_path()
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ClusterError(
            f"the local cluster's token in {path} cannot be read: {error.strerror}; start the "
            f"cluster anew: rl-service cluster down, then up"
        ) from error
    return Dashboard(cluster.dashboard_url, token, str(path))


def _node_status(
    cluster: LocalCluster,
    node: Node,
    known: dict[str, Any] | None,
    usage: dict[str, dict[str, list[float]]],
) -> NodeStatus:
    node_id = known["node_id"] if known else None
    alive = bool(known and known["state"] == "ALIVE") and is_running(cluster.id, node.pid)
    used = usage.get(node_id or "", {}) if alive else {}
    cpus_used, cpus = used.get("CPU", [0.0, float(node.num_cpus)])
    gpus_used, gpus = used.get("GPU", [0.0, 0.0])
    return NodeStatus(node.name, alive, cpus_used, cpus, gpus_used, gpus, node_id, node.pid)


def _by_name(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of rows with one name that which is alive: a node that was started again keeps its name."""
    return {row["node_name"]: row for row in sorted(rows, key=lambda row: row["state"] == "ALIVE")}


def _usage_by_node(dashboard: Dashboard) -> dict[str, dict[str, list[float]]]:
    """`[used, there]` by node id and resource, a second old at most."""
    answer: Any = dashboard.get("/api/cluster_status")
    for key in ("data", "clusterStatus", "loadMetricsReport", "usageByNode"):
        answer = (answer or {}).get(key)
    return answer or {}


def _count_jobs(dashboard: Dashboard) -> dict[str, int]:
    jobs = dashboard.get_list("/api/jobs/")
    return dict(Counter(job["status"] for job in jobs if job.get("submission_id")))
