"""Nodes that the autoscaler brings, and what is left of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_service.cluster import nodes
from rl_service.cluster.nodes import CLUSTER_MARK, kill_processes, marked_processes
from rl_service.cluster.provider import LocalNodeProvider


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalNodeProvider]:
    """With nodes that are one process each, and no Ray that could be told of them."""
    monkeypatch.setenv(CLUSTER_MARK, "0123")
    monkeypatch.setattr(nodes, "worker_command", lambda **_: ["sleep", "100"])
    monkeypatch.setattr(LocalNodeProvider, "_publish_limits", lambda _: None)
    config: dict[str, Any] = {"folder": str(tmp_path), "address": "", "num_cpus": 1}
    made = LocalNodeProvider({**config, "store_bytes": 1}, "0123")
    yield made
    for name in made.non_terminated_nodes({}):
        made.terminate_node(name)


@pytest.mark.parametrize("how", ["terminated", "killed"])
def test_a_node_that_has_gone_leaves_its_logs_alone(
    provider: LocalNodeProvider, tmp_path: Path, how: str
) -> None:
    provider.create_node_with_resources_and_labels({}, {"kind": "worker"}, 2, {}, {})
    assert provider.non_terminated_nodes({"kind": "worker"}) == ["worker-1", "worker-2"]
    for name in ("worker-1/session_1/logs/job.log", "worker-1/session_1/ray_spilled_objects/x"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(name)
    if how == "terminated":
        provider.terminate_node("worker-1")
    else:
        kill_processes("0123", "worker-1")
    assert provider.non_terminated_nodes({"kind": "worker"}) == ["worker-2"]
    assert marked_processes("0123", "worker-1") == []
    assert [path for path in (tmp_path / "worker-1").rglob("*") if path.is_file()] == [
        tmp_path / "worker-1/session_1/logs/job.log"
    ]
