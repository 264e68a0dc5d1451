"""One cluster from `up` to `down`: jobs that train on it, are left alone, stopped and resumed."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_service.cluster.nodes import marked_processes
from rl_service.runtime.machine import ALL_INTERFACES, usable_port
from rl_service.training.run import Run
from tests.support.clusters import (
    LONG,
    ROOT,
    SLOW,
    WANDB_KEY,
    UserCluster,
    wait_for,
)


def test_up_starts_nodes_that_keep_the_token_to_themselves(cluster: UserCluster) -> None:
    status = cluster.ask("cluster", "status")
    assert [(node["name"], node["alive"], node["cpus"]) for node in status["nodes"]] == [
        ("head", True, 1.0),
        ("worker-1", True, 1.0),
    ]
    assert stat.S_IMODE((cluster.home / "cluster.token").stat().st_mode) == 0o600
    commands = [Path(f"/proc/{pid}/cmdline") for pid in marked_processes(cluster.state.id)]
    assert len(commands) > 6
    assert [path for path in commands if cluster.token in path.read_text()] == []


def test_a_second_up_says_that_there_is_one(cluster: UserCluster) -> None:
    line = cluster.refusal("cluster", "up")
    assert "a local cluster of 2 node(s) is up already" in line
    assert "rl-service cluster down" in line


def test_a_training_runs_as_submitted_across_the_nodes_and_leaves_its_results_here(
    cluster: UserCluster,
) -> None:
    status, out, err = cluster.run("submit", "tiny.yaml", "--follow", "--json")
    assert status == 0, out + err
    result = json.loads(out.splitlines()[-1])
    assert (result["status"], result["command"]) == ("SUCCEEDED", "tiny.yaml")
    assert re.fullmatch(r"tiny-\d{4}-\d{6}", result["id"])
    assert "Finished: 2 iterations" in out

    [config] = cluster.project.glob("runs/*/*/config.yaml")
    assert len(Run.open(config.parent).read_progress()) == 2
    assert len(list(cluster.project.glob("checkpoints/mlp/*/*/policy.json"))) == 1
    probes = [json.loads(path.read_text()) for path in cluster.project.glob("runs/probes/*")]
    # One CPU a node, so one of two rollout workers is on each.
    assert {probe["node"] for probe in probes} == {"head", "worker-1"}
    unpacked = [
        cluster.state.folder in probe[key] for probe in probes for key in ("code", "package")
    ]
    assert all(unpacked), probes  # none of it from the project's folder or an installed package
    assert WANDB_KEY in {probe["wandb_key"] for probe in probes}


def test_no_secret_is_where_others_can_read_it(cluster: UserCluster) -> None:
    listed = cluster.api("/api/jobs/")
    assert "WANDB_MODE" in listed  # what the tests set and is no secret
    assert WANDB_KEY not in listed
    assert cluster.token not in listed
    assert list((cluster.home / "secrets").iterdir()) == []
    line = cluster.refusal("submit", "train", "--set", f"tracking.experiment={WANDB_KEY}")
    assert "holds the value of WANDB_API_KEY" in line
    assert WANDB_KEY not in line


def test_a_job_outlives_its_clients_saves_when_stopped_and_goes_on_when_resumed(
    cluster: UserCluster,
) -> None:
    before = set(cluster.project.glob("runs/*/*/config.yaml"))
    submit = ["submit", "--follow", "--name", "Long one", "tiny.yaml", *LONG]
    detached = cluster.start(*submit, **SLOW)
    assert detached.stdout is not None
    [job_id] = re.findall(r"submitted (long_one-\S+)", detached.stdout.readline())
    run = Run.open(
        wait_for(lambda: set(cluster.project.glob("runs/*/*/config.yaml")) - before, "run")
        .pop()
        .parent
    )
    wait_for(lambda: len(run.read_progress()) > 3, "iterations")
    detached.send_signal(signal.SIGINT)
    _, err = detached.communicate(timeout=60)
    assert detached.returncode == 130
    assert f"detached; {job_id} continues: rl-service jobs logs {job_id} --follow" in err
    killed = cluster.start("jobs", "logs", "long", "--follow")
    assert killed.stdout is not None
    assert "Running entrypoint" in killed.stdout.readline() + killed.stdout.readline()
    killed.kill()
    rows = len(run.read_progress())
    wait_for(lambda: len(run.read_progress()) > rows, "iterations without a client")

    stopped = cluster.ask("jobs", "stop", "long")
    assert (stopped["id"], stopped["status"]) == (job_id, "STOPPED")
    last = run.read_progress()[-1]["training_iteration"]
    checkpoint = run.checkpoints.latest()
    assert checkpoint is not None
    assert int(checkpoint.name.rpartition("_")[2]) == last
    assert "a checkpoint is saved" in cluster.run("jobs", "logs", job_id)[1]
    assert cluster.ask("jobs", "stop", job_id)["status"] == "STOPPED"  # twice changes nothing

    resume = ["train", "--resume", run.path.relative_to(cluster.project).as_posix()]
    status, out, _ = cluster.run("submit", *resume, "-ne", str(last + 2), "--follow")
    assert status == 0, out
    assert f"resumed after iteration {last}" in out
    rows_now = [row["training_iteration"] for row in run.read_progress()]
    assert rows_now == list(range(1, last + 3))


def test_a_job_that_fails_is_told_in_its_log_and_by_the_exit_status(cluster: UserCluster) -> None:
    status, out, _ = cluster.run("submit", "train", "-e", "Nothing-v0", "--follow")
    assert status == 1
    assert "error: " in out
    [job_id] = re.findall(r"submitted (\S+)", out)
    failed = cluster.job(job_id)
    assert (failed["status"], failed["exit_code"]) == ("FAILED", 2)


def test_list_knows_all_jobs_and_beginnings_of_ids_must_be_clear(cluster: UserCluster) -> None:
    listed = cluster.ask("jobs", "list")["jobs"]
    assert [job["status"] for job in listed] == [
        *("FAILED", "SUCCEEDED", "STOPPED", "SUCCEEDED"),
    ]
    assert cluster.ask("cluster", "status")["jobs"] == {"FAILED": 1, "SUCCEEDED": 2, "STOPPED": 1}
    assert "train means 2 jobs: " in cluster.refusal("jobs", "status", "train")
    assert "there is no job nothing at " in cluster.refusal("jobs", "logs", "nothing")


def test_what_is_wrong_with_address_or_token_is_one_line(cluster: UserCluster) -> None:
    url, stranger = cluster.state.dashboard_url, str(cluster.home / "elsewhere")
    there = ("--address", url)
    for arguments in (("jobs", "list"), ("submit", "tiny.yaml", "-o", "/data")):
        line = cluster.refusal(*arguments, *there, RL_SERVICE_HOME=stranger)
        assert "asks for a token" in line
        wrong = {"RL_SERVICE_HOME": stranger, "RAY_AUTH_TOKEN": "wrong"}
        assert "does not take the token from RAY_AUTH_TOKEN" in cluster.refusal(
            *arguments, *there, **wrong
        )
    gcs = cluster.state.address
    line = cluster.refusal("jobs", "list", "--address", gcs, RL_SERVICE_HOME=stranger)
    assert "is not a Ray dashboard; give the dashboard's address, usually http://HOST:8265" in line
    line = cluster.refusal("jobs", "list", RL_SERVICE_HOME=stranger)
    assert "start one here with rl-service cluster up" in line
    line = cluster.refusal("submit", "tiny.yaml", *there, RL_SERVICE_HOME=stranger)
    assert "what the job writes would be lost" in line
    line = cluster.refusal("submit", "tiny.yaml", "--address", "127.0.0.1:1", "-o", "/data")
    assert "no Ray cluster answers at http://127.0.0.1:1" in line
    assert "ray://" in cluster.refusal("jobs", "list", "--address", "ray://127.0.0.1:10001")


@pytest.fixture
def other_ray() -> Iterator[subprocess.Popen[bytes]]:
    """Another Ray on this machine, started without us."""
    with tempfile.TemporaryDirectory(prefix="rl-", dir="/tmp") as folder:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
        client_port = usable_port("", 0, ALL_INTERFACES)
        ports = [f"--ray-client-server-port={client_port}", "--dashboard-agent-listen-port=0"]
        few = ["--num-cpus=1", "--object-store-memory=80000000", "--include-dashboard=false"]
        log = Path(folder, "log")
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*command, "--port=0", *ports, *few, f"--temp-dir={folder}/r"],
                env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            wait_for(lambda: "Ray runtime started" in log.read_text(), "another Ray")
            yield process
        finally:
            process.terminate()
            process.wait(60)


def test_down_ends_all_of_the_cluster_and_nothing_else(
    cluster: UserCluster, other_ray: subprocess.Popen[bytes]
) -> None:
    state = cluster.state
    saved = set(cluster.project.glob("runs/*/*/config.yaml"))
    [job_id] = re.findall(r"submitted (\S+)", cluster.run("submit", "tiny.yaml", *LONG, **SLOW)[1])
    found = wait_for(lambda: set(cluster.project.glob("runs/*/*/config.yaml")) - saved, "run")
    run = Run.open(found.pop().parent)
    wait_for(lambda: len(run.read_progress()) > 2, "iterations")
    status, out, err = cluster.run("cluster", "down")
    assert (status, out) == (0, "ended 2 node(s); stopped 1 job(s)\n"), out + err
    assert job_id in err
    checkpoint = run.checkpoints.latest()
    assert checkpoint is not None
    assert int(checkpoint.name.rpartition("_")[2]) == len(run.read_progress())
    assert marked_processes(state.id) == []
    assert not Path(state.folder).exists()
    assert [path.name for path in cluster.home.iterdir()] == ["cluster.lock"]
    assert other_ray.poll() is None
    children = subprocess.run(
        ["ps", "-o", "args=", "--sid", str(other_ray.pid)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "gcs_server" in children.stdout
    assert "raylet" in children.stdout
    assert cluster.run("cluster", "down")[1] == "no local cluster is up\n"
    assert cluster.run("cluster", "status")[0] == 1
