"""Local clusters, of two nodes or scaling."""

from tests.support.clusters import cluster, scaling_cluster

__all__ = ["cluster", "scaling_cluster"]
