"""Processes are found and ended by their mark: all of a cluster's, and nobody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_service.cluster import nodes
from rl_service.cluster.nodes import CLUSTER_MARK, NODE_MARK

DEAF = "trap '' TERM; sleep 100 & wait; wait"  # has a child, and ends by SIGKILL alone
Start = list[subprocess.Popen[bytes]]


class Marked:
    """Starts shells as nodes of clusters."""

    def __init__(self) -> None:
        self.started: Start = []

    def __call__(self, cluster: str, node: str, script: str = "sleep 100") -> int:
        environment = {**os.environ, CLUSTER_MARK: cluster, NODE_MARK: node}
        process = subprocess.Popen(["sh", "-c", script], env=environment, start_new_session=True)
        self.started.append(process)
        deadline = time.monotonic() + 30
        while process.pid not in nodes.marked_processes(cluster):  # before exec it has no mark
            assert time.monotonic() < deadline
        return process.pid

    def status(self, pid: int) -> int | None:
        [process] = [process for process in self.started if process.pid == pid]
        return process.poll()


@pytest.fixture
def start() -> Iterator[Marked]:
    marked = Marked()
    yield marked
    for process in marked.started:
        process.poll()
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_a_cluster_ends_with_children_and_deaf_processes_and_another_goes_on(
    start: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "_GRACE_S", 0.5)
    monkeypatch.setattr(nodes, "_REST_S", 0.5)
    polite, deaf = start("a", "head"), start("a", "worker-1", DEAF)
    other = start("b", "head")
    assert nodes.end_processes("a", [polite, deaf])
    assert start.status(polite) == -signal.SIGTERM
    assert start.status(deaf) == -signal.SIGKILL
    assert nodes.marked_processes("a") == []
    assert nodes.is_running("b", other)
    assert not nodes.is_running("a", other)


def test_one_node_is_killed_and_the_others_stay(start: Marked) -> None:
    head, worker = start("a", "head"), start("a", "worker-1", DEAF)
    assert nodes.kill_processes("a", "worker-1")
    assert start.status(worker) == -signal.SIGKILL
    assert nodes.marked_processes("a", "worker-1") == []
    assert head in nodes.marked_processes("a", "head")


def test_a_leader_whose_number_is_another_process_by_now_is_not_hit(start: Marked) -> None:
    other = start("b", "head")
    assert nodes.end_processes("a", [other, os.getpid()])
    assert nodes.is_running("b", other)


def test_arguments_that_are_no_text_are_shown_as_far_as_they_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cmdline").write_bytes(b"sleep\0\xff\0")
    monkeypatch.setattr(nodes, "_PROC", tmp_path)
    assert nodes.command_line(7) == "sleep \ufffd"
