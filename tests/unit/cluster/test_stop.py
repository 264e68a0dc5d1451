"""Stopping jobs: a dashboard that is away for a while or refuses one job keeps none from saving."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from typing import Any

import pytest
import typer

from rl_service.cli import jobs as jobs_command
from rl_service.cluster import jobs as control
from rl_service.cluster import nodes, state
from rl_service.cluster.dashboard import Dashboard
from rl_service.cluster.jobs import find_job, stop_all_local, stop_job
from rl_service.cluster.state import LocalCluster, Node
from rl_service.cluster.submit import entrypoint
from rl_service.common.errors import JobError


class FakeCluster(ThreadingHTTPServer):
    """The routes of a Ray dashboard that stopping needs; no real one fails when asked to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Routes)
        self.jobs: dict[str, str] = {}
        self.entrypoints: dict[str, str] = {}
        self.deaf: set[str] = set()
        """Jobs whose stopping drops the connection."""
        self.waiting: set[str] = set()
        """Jobs that have no place, and do not hear that they are to stop."""
        self.drops_left = 0
        """Listings that drop the connection, after the first stop."""
        self.asked = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def rows(self) -> list[dict[str, Any]]:
        ours = entrypoint(["train"])
        return [
            {
                "submission_id": job,
                "status": status,
                "entrypoint": self.entrypoints.get(job, ours),
                "metadata": {},
            }
            for job, status in self.jobs.items()
        ]


class _Routes(BaseHTTPRequestHandler):
    server: FakeCluster

    def do_GET(self) -> None:
        if self.path == "/api/version":
            self._send({"version": "4", "ray_version": version("ray"), "ray_commit": ""})
        elif self.server.asked and self.server.drops_left:
            self.server.drops_left -= 1
        else:
            self._send(self.server.rows())

    def do_POST(self) -> None:
        job = self.path.split("/")[3]
        self.server.asked += 1
        if job not in self.server.deaf:
            if job not in self.server.waiting:
                self.server.jobs[job] = "STOPPED"
            self._send({"stopped": True})

    def _send(self, content: Any) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[FakeCluster]:
    """It is the local cluster, as far as files and the marks of processes tell."""
    monkeypatch.setenv("RL_SERVICE_HOME", str(tmp_path))
    monkeypatch.setattr(nodes, "_environment", lambda pid: {b"RL_SERVICE_CLUSTER_ID=0123"})
    for name in ("NO_PROXY", "no_proxy", "NETRC"):  # which Ray's client changes
        monkeypatch.setenv(name, "")
    state.create_token()
    with FakeCluster() as server:
        state.save_cluster(
            LocalCluster(
                id="0123",
                address="127.0.0.1:1",
                dashboard_url=server.url,
                folder="/tmp/rlc-0123",
                started_at="2030-01-01T00:00:00+00:00",
                nodes=[Node(name="head", pid=os.getpid(), num_cpus=2)],
            )
        )
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_dashboard_that_is_away_for_a_while_does_not_end_the_wait(cluster: FakeCluster) -> None:
    cluster.jobs = {"one": "RUNNING"}
    cluster.drops_left = 2
    dashboard = Dashboard(cluster.url)
    ended = stop_job(dashboard, find_job(dashboard, "one"), print)
    assert (ended.status, cluster.drops_left) == ("STOPPED", 0)


def test_a_job_that_cannot_be_asked_is_one_line(cluster: FakeCluster) -> None:
    cluster.jobs, cluster.deaf = {"one": "RUNNING"}, {"one"}
    dashboard = Dashboard(cluster.url)
    with pytest.raises(JobError, match=r"one cannot be stopped: .*; try again"):
        stop_job(dashboard, find_job(dashboard, "one"), print)


def test_one_job_that_cannot_be_asked_keeps_no_other_from_saving(cluster: FakeCluster) -> None:
    cluster.jobs = {"one": "RUNNING", "two": "RUNNING", "three": "SUCCEEDED"}
    cluster.deaf, cluster.drops_left = {"one"}, 1
    told: list[str] = []
    assert stop_all_local(told.append) == 1
    assert cluster.jobs == {"one": "RUNNING", "two": "STOPPED", "three": "SUCCEEDED"}
    assert [line[:40] for line in told] == [
        "note: one may have lost what came after ",
        "asked two to stop; a training ends its i",
    ]


def test_a_job_without_a_place_is_told_to_be_pending_soon(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(control, "_PENDING_S", 0.7)
    cluster.jobs, cluster.waiting = {"one": "PENDING"}, {"one"}
    with pytest.raises(typer.Exit) as exit_:
        jobs_command.stop_job("one", address=cluster.url)
    assert exit_.value.exit_code == 1
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("one is still pending: it waits for its CPUs and GPUs")


def test_a_job_that_starts_just_now_is_waited_for(cluster: FakeCluster) -> None:
    cluster.jobs = {"one": "PENDING"}
    dashboard = Dashboard(cluster.url)
    assert stop_job(dashboard, find_job(dashboard, "one"), print).status == "STOPPED"


def test_the_end_of_a_cluster_waits_for_no_job_without_a_place(cluster: FakeCluster) -> None:
    cluster.jobs, cluster.waiting = {"one": "PENDING", "two": "RUNNING"}, {"one"}
    assert stop_all_local(print) == 1
    assert cluster.jobs == {"one": "PENDING", "two": "STOPPED"}


def test_a_job_that_does_not_end_is_told_with_why_nothing_is_known(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "STOP_WAIT_S", 0.7)
    monkeypatch.setattr(control, "_AFTER_KILL_S", 0.0)
    cluster.jobs, cluster.drops_left = {"one": "RUNNING"}, 99
    told: list[str] = []
    assert stop_all_local(told.append) == 0
    assert "one was asked to stop minutes ago and is still running (no Ray cluster" in told[-1]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (entrypoint(["train", "-e", "X"]), "submit --address {url} train --resume RUN"),
        (entrypoint(["tune", "x.yaml"]), "submit --address {url} tune --resume EXPERIMENT"),
        (entrypoint(["evaluate", "zoo:lunarlander"]), None),
        ("python train.py", None),
    ],
)
def test_what_was_stopped_is_resumed_with_its_own_command(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str], command: str, said: str | None
) -> None:
    cluster.jobs, cluster.entrypoints = {"one": "RUNNING"}, {"one": command}
    jobs_command.stop_job("one", address=cluster.url)
    out = capsys.readouterr().out
    assert "one ended: stopped" in out
    assert ("continue with" in out) == (said is not None)
    if said is not None:
        assert f"continue with rl-service {said.format(url=cluster.url)}\n" in out
