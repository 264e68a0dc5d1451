"""Whether all nodes see the storage, where nodes may go or be silent meanwhile."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import GetTimeoutError, TaskUnschedulableError

from rl_service.common.errors import OutputError, ResourceError
from rl_service.tuning import resources
from rl_service.tuning.resources import check_shared
from rl_service.tuning.storage import PLAN_FILE, experiment_storage

GONE, SILENT = TaskUnschedulableError("the node is gone"), GetTimeoutError("Get timed out")


class Nodes:
    """A cluster whose nodes answer, or raise, what they are told to; the first one sees it all."""

    def __init__(self, answer: Any, *, stays: bool) -> None:
        self.answers = {"a": True, "b": answer}
        self.stays = stays
        self.asked = False

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "NodeID": name,
                "NodeManagerAddress": f"host-{name}",
                "Alive": name == "a" or self.stays or not self.asked,
            }
            for name in self.answers
        ]

    def remote(self, **_: Any) -> Any:
        return lambda function: self

    def options(self, *, scheduling_strategy: Any) -> Any:
        return SimpleNamespace(remote=lambda path: scheduling_strategy.node_id)

    def wait(self, looks: list[str], **_: Any) -> None:
        self.asked = True

    def get(self, look: str, **_: Any) -> Any:
        if isinstance(self.answers[look], Exception):
            raise self.answers[look]
        return self.answers[look]


def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: Nodes) -> None:
    for name in ("nodes", "remote", "wait", "get"):
        monkeypatch.setattr(ray, name, getattr(nodes, name))
    monkeypatch.setattr(
        resources,
        "NodeAffinitySchedulingStrategy",
        lambda node, soft: SimpleNamespace(node_id=node),
    )
    storage = experiment_storage(f"{tmp_path}/one")
    storage.write(PLAN_FILE, b"")
    try:
        check_shared(storage)
    finally:
        assert storage.names() == [PLAN_FILE]


def test_a_node_that_sees_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OutputError, match="has 2 nodes, and host-b cannot see"):
        check(tmp_path, monkeypatch, Nodes(False, stays=True))


@pytest.mark.parametrize("answer", [True, GONE, SILENT])
def test_a_node_that_goes_meanwhile_need_not_see_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    check(tmp_path, monkeypatch, Nodes(answer, stays=False))


def test_a_node_that_stays_and_is_silent_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ResourceError, match=r"node host-b does not say .* \(Get timed out\); see"):
        check(tmp_path, monkeypatch, Nodes(SILENT, stays=True))
