"""A node that dies under jobs."""

from __future__ import annotations

import pytest

from tests.support.clusters import (
    LONG,
    SLOW,
    UserCluster,
    wait_for,
)


@pytest.mark.timeout(600)
def test_a_node_that_dies_is_shown_and_ends_the_jobs_on_it(cluster: UserCluster) -> None:
    def status(job: str) -> str:
        return str(cluster.job(job)["status"])

    for name in ("first", "second", "third"):  # and each of two nodes has one CPU
        submit = ("submit", "tiny.yaml", *LONG, "--cpus", "1", "--name", name)
        assert cluster.run(*submit, **SLOW)[0] == 0
    wait_for(lambda: status("first") == status("second") == "RUNNING", "a job on each node")
    exit_status, out, _ = cluster.run("jobs", "stop", "third")
    assert exit_status == 1
    assert "is still pending: it waits for its CPUs and GPUs" in out
    [node_id] = [
        node["node_id"]
        for node in cluster.ask("cluster", "status")["nodes"]
        if node["name"] == "worker-1"
    ]
    dies, stays = "first", "second"
    if cluster.job(stays)["node_id"] == node_id:
        dies, stays = stays, dies
    cluster.kill_node("worker-1")
    exit_status, out, err = cluster.run("jobs", "logs", dies, "--follow")
    assert exit_status == 1, out + err
    assert "note: the end of the log cannot be read (the dashboard at" in out
    assert cluster.run("jobs", "stop", stays)[0] == 0
    wait_for(lambda: status("third") == "STOPPED", "a job that stops when it has its place")

    def nodes() -> list[tuple[str, bool]]:
        found = cluster.ask("cluster", "status")["nodes"]
        return [(node["name"], node["alive"]) for node in found]

    wait_for(lambda: nodes() == [("head", True), ("worker-1", False)], "a dead node")
    assert "dead" in cluster.run("cluster", "status")[1]
