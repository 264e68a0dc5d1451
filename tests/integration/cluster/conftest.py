"""Local clusters, of two nodes or scaling."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.clusters import UserCluster, started


@pytest.fixture(scope="module")
def cluster() -> Iterator[UserCluster]:
    with started("up", "--nodes", "2", "--cpus-per-node", "1") as user:
        yield user


@pytest.fixture(scope="module")
def scaling_cluster() -> Iterator[UserCluster]:
    """A head with one CPU, and up to two workers with one each that come and go."""
    with started("autoscale", "--max-nodes", "3", "--idle-timeout-s", "5") as user:
        yield user
