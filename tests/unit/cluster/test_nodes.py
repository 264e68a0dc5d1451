"""Commands and environments of nodes; what a node says when it fails to start."""

from __future__ import annotations

import os
import platform
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_service.cluster import local, nodes, state
from rl_service.cluster.local import cluster_status, end_cluster, start_cluster
from rl_service.cluster.nodes import CLUSTER_MARK
from rl_service.cluster.state import LocalCluster, Node
from rl_service.common.errors import ClusterError, SettingsError
from rl_service.runtime.machine import LOOPBACK, usable_port
from rl_service.runtime.signals import interruptible

TOKEN_PATH = Path("/home/me/.rl-service/cluster.token")


def environment(**given: str) -> dict[str, str]:
    return nodes.node_environment("0123", "worker-1", TOKEN_PATH, given)


def test_nodes_ask_for_the_token_and_find_it_in_the_file() -> None:
    found = environment(RAY_AUTH_MODE="disabled", RAY_AUTH_TOKEN="another", PATH="/bin")
    assert found["RAY_AUTH_MODE"] == "token"
    assert found["RAY_AUTH_TOKEN_PATH"] == str(TOKEN_PATH)
    assert "RAY_AUTH_TOKEN" not in found
    assert found["PATH"] == f"{Path(sys.executable).parent}:/bin"


def test_nodes_do_not_join_the_user_s_other_cluster_nor_keep_what_belongs_to_one_command() -> None:
    given = {"RAY_ADDRESS": "other:6379", "WANDB_API_KEY": "k", "RL_SERVICE_REGISTRY": "r"}
    assert set(given) & set(environment(**given)) == set()
    assert environment(HOME="/home/me")["HOME"] == "/home/me"


def test_a_job_that_is_stopped_has_minutes_to_save() -> None:
    assert int(environment()["RAY_JOB_STOP_WAIT_TIME_S"]) >= 60


def test_the_dashboard_listens_on_loopback_alone_and_gpus_count_once() -> None:
    head = nodes.head_command(
        port=1, dashboard_port=2, client_port=3, num_cpus=4, store_bytes=5, folder="/tmp/x"
    )
    worker = nodes.worker_command(
        name="worker-1", address="h:1", num_cpus=4, store_bytes=5, folder="/tmp/x/worker-1"
    )
    assert "--dashboard-host=127.0.0.1" in head
    assert "--num-gpus=0" in worker
    assert "--num-gpus=0" not in head


def test_nodes_that_come_and_go_need_a_head_a_worker_and_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_SERVICE_HOME", str(tmp_path))
    for max_nodes, idle_timeout_s, message in (
        (1, 30.0, "--max-nodes must be at least 2: the head, and a worker that may come"),
        (3, 0.0, "--idle-timeout-s must be above 0, not 0"),
        (3, float("nan"), "--idle-timeout-s must be above 0, not nan"),
    ):
        with pytest.raises(SettingsError, match=message):
            start_cluster(
                num_nodes=max_nodes,
                cpus_per_node=1,
                port=0,
                dashboard_port=0,
                idle_timeout_s=idle_timeout_s,
                on_message=print,
            )
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.lock"]


def test_a_node_that_fails_to_start_is_told_with_its_last_error(tmp_path: Path) -> None:
    log = tmp_path / "head.log"
    script = "print('x'); print('OSError:  no  room'); print('bye')"
    process = nodes.start_node([sys.executable, "-c", script], dict(os.environ), log)
    process.wait()
    assert not nodes.was_given_up(log)
    failure = str(nodes.start_failure("head", log))
    assert re.search(r"node head .* \(OSError: no room\); free memory", failure)


def test_of_a_dead_node_s_folder_only_logs_stay(tmp_path: Path) -> None:
    session = tmp_path / "session_2030"
    for name in (
        "logs/job-driver-one.log",
        "sockets/raylet",
        "ray_spilled_objects_0/one",
        "x.json",
    ):
        (session / name).parent.mkdir(parents=True, exist_ok=True)
        (session / name).write_text(name)
    (tmp_path / "session_latest").symlink_to(session)
    nodes.keep_only_logs(tmp_path)
    assert [path for path in session.rglob("*") if path.is_file()] == [
        session / "logs/job-driver-one.log"
    ]
    assert [path.name for path in session.iterdir()] == ["logs"]
    nodes.keep_only_logs(tmp_path / "never started")


def test_a_port_that_is_taken_is_one_line_and_0_takes_a_free_one() -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"--port {port} cannot be used: address already"):
            usable_port("--port", port, LOOPBACK)
        assert usable_port("--port", 0, LOOPBACK) < 32768  # from where any connection takes them
        with pytest.raises(SettingsError, match="--port 0 cannot be used: cannot assign"):
            usable_port("--port", 0, "203.0.113.1")
        letting_go = threading.Timer(0.3, taken.close)
        letting_go.start()
        assert usable_port("--port", port, LOOPBACK, patience_s=60.0) == port


def test_a_start_that_is_refused_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_SERVICE_HOME", str(tmp_path))
    with pytest.raises(SettingsError, match="must be at least 1"):
        start_cluster(num_nodes=0, cpus_per_node=1, port=0, dashboard_port=0, on_message=print)
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.lock"]


@pytest.fixture
def failing_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python whose Ray does not start, and leaves a process behind."""
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nsleep 100 &\necho 'OSError: no memory'\nexit 1\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(fake))
    monkeypatch.setenv("RL_SERVICE_HOME", str(tmp_path / "home"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(local, "_TMP", tmp_path / "tmp")  # where nobody else's clusters are
    return fake


def test_a_node_that_ray_gave_up_is_started_once_more(tmp_path: Path, failing_ray: Path) -> None:
    said = "Exception: The current node timed out during startup. This could happen because ..."
    failing_ray.write_text(f"#!/bin/sh\necho x >> {tmp_path}/starts\necho '{said}'\nexit 1\n")
    with pytest.raises(ClusterError, match=r"node head .* \(Exception: The current node timed out"):
        start_cluster(num_nodes=2, cpus_per_node=1, port=0, dashboard_port=0, on_message=print)
    assert (tmp_path / "starts").read_text() == "x\nx\n"


def test_a_node_that_ends_just_after_it_was_looked_at_is_started_once_more(
    tmp_path: Path, failing_ray: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_ray.write_text(
        f"#!/bin/sh\necho x >> {tmp_path}/starts\necho node timed out during startup\nexit 1\n"
    )

    class Node(subprocess.Popen[bytes]):
        looked_at = False

        def poll(self) -> int | None:
            self.wait()
            before, self.looked_at = self.looked_at, True
            return self.returncode if before else None

    monkeypatch.setattr(subprocess, "Popen", Node)
    with pytest.raises(ClusterError, match="timed out during startup"):
        start_one()
    assert (tmp_path / "starts").read_text() == "x\nx\n"


def test_a_node_that_fails_for_another_reason_is_not(tmp_path: Path, failing_ray: Path) -> None:
    failing_ray.write_text(
        f"#!/bin/sh\necho x >> {tmp_path}/starts\necho 'OSError: no memory'\nexit 1\n"
    )
    start_and_fail()
    assert (tmp_path / "starts").read_text() == "x\n"


def start_and_fail(on_message: Callable[[str], None] = print) -> None:
    with pytest.raises(ClusterError, match=r"node head .* \(OSError: no memory\)"):
        start_cluster(num_nodes=2, cpus_per_node=1, port=0, dashboard_port=0, on_message=on_message)


def test_a_head_that_does_not_start_leaves_no_process_no_folder_and_no_token(
    tmp_path: Path, failing_ray: Path
) -> None:
    start_and_fail()
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["cluster.lock"]
    assert list((tmp_path / "tmp").iterdir()) == []
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert str(failing_ray) not in listed.stdout


def test_a_cluster_that_is_dead_is_cleaned_up_and_said(tmp_path: Path, failing_ray: Path) -> None:
    dead = tmp_path / "dead"
    dead.mkdir()
    state.create_token()
    save_dead_cluster(dead)
    with pytest.raises(ClusterError, match="is dead; clean up with rl-service cluster down"):
        cluster_status()
    told: list[str] = []
    start_and_fail(told.append)
    assert told[0] == "the cluster of 2030-01-01T00:00:00+00:00 was dead; cleaned up after it"
    assert not dead.exists()


def test_down_cleans_up_after_a_dead_cluster(tmp_path: Path, failing_ray: Path) -> None:
    save_dead_cluster(tmp_path / "gone")
    assert end_cluster() is not None
    assert end_cluster() is None


def test_a_signal_does_not_end_the_clean_up_half_done(
    failing_ray: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_dead_cluster(failing_ray.parent / "gone")

    def end(*_: object) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        return True

    monkeypatch.setattr(nodes, "end_processes", end)
    with interruptible():
        end_cluster()
    assert state.load_cluster() is None


def test_a_cluster_of_another_machine_is_named_and_left_alone(
    tmp_path: Path, failing_ray: Path
) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    state.create_token()
    save_dead_cluster(folder)
    cluster = state.load_cluster()
    assert cluster is not None
    state.save_cluster(cluster.model_copy(update={"host": "elsewhere"}))
    kept = sorted(state.home_folder().iterdir())
    refused = r"is that of elsewhere, .*; go there, set RL_SERVICE_HOME"
    for command in (start_one, end_cluster, cluster_status):
        with pytest.raises(ClusterError, match=refused):
            command()
    assert folder.exists()
    assert [path for path in kept if not path.exists()] == []


def test_a_machine_that_was_renamed_still_has_its_cluster(
    failing_ray: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.home_folder().mkdir()
    monkeypatch.setenv(CLUSTER_MARK, "0123")
    with subprocess.Popen(["sleep", "100"]) as process:
        save_cluster(process.pid, failing_ray.parent / "renamed", host="before")
        assert end_cluster() is not None
    assert process.returncode == -signal.SIGTERM


def start_one() -> None:
    start_cluster(num_nodes=1, cpus_per_node=1, port=0, dashboard_port=0, on_message=print)


def save_dead_cluster(folder: Path) -> None:
    state.home_folder().mkdir(exist_ok=True)
    ended = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, check=True)
    save_cluster(int(ended.stdout), folder)


def save_cluster(pid: int, folder: Path, host: str = platform.node()) -> None:
    state.save_cluster(
        LocalCluster(
            id="0123",
            address="127.0.0.1:7000",
            dashboard_url="http://127.0.0.1:7001",
            folder=str(folder),
            started_at="2030-01-01T00:00:00+00:00",
            nodes=[Node(name="head", pid=pid, num_cpus=2)],
            host=host,
        )
    )


@pytest.mark.parametrize("order", [1, -1])
def test_a_node_that_was_started_again_is_alive_wherever_its_dead_one_is_listed(order: int) -> None:
    rows = [
        {"node_name": "worker-1", "node_id": "a", "state": "DEAD"},
        {"node_name": "worker-1", "node_id": "b", "state": "ALIVE"},
        {"node_name": "worker-2", "node_id": "c", "state": "DEAD"},
    ][::order]
    found = {name: row["node_id"] for name, row in local._by_name(rows).items()}
    assert found == {"worker-1": "b", "worker-2": "c"}
