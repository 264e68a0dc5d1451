"""What a cluster's nodes are doing, out of what its dashboard lists."""

from __future__ import annotations

import pytest

from rl_service.cluster import status


@pytest.mark.parametrize("order", [1, -1])
def test_a_node_that_was_started_again_is_alive_wherever_its_dead_one_is_listed(order: int) -> None:
    rows = [
        {"node_name": "worker-1", "node_id": "a", "state": "DEAD"},
        {"node_name": "worker-1", "node_id": "b", "state": "ALIVE"},
        {"node_name": "worker-2", "node_id": "c", "state": "DEAD"},
    ][::order]
    found = {name: row["node_id"] for name, row in status._by_name(rows).items()}
    assert found == {"worker-1": "b", "worker-2": "c"}
