"""The nodes of a local cluster: how they are started, what they say, how their processes end.

All processes of a cluster carry its mark in their environment. What a node starts inherits it,
jobs and rollout workers as well, and nothing else has it: so ending a cluster cannot hit another
Ray on the machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from rl_service.common.errors import ClusterError
from rl_service.runtime.machine import was_too_slow

HEAD, WORKER = "head", "worker"
CLUSTER_MARK, NODE_MARK = "RL_SERVICE_CLUSTER_ID", "RL_SERVICE_CLUSTER_NODE"
STOP_WAIT_VARIABLE = "RAY_JOB_STOP_WAIT_TIME_S"
STOP_WAIT_S = 300
"""Between SIGTERM and SIGKILL for a job that is stopped: time to end an iteration and to save.
Ray's 3 s would cost the work since the last checkpoint."""

# Of the user's own Ray, or of one command; what a job needs of the rest comes with the job.
_NOT_PASSED_ON = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_TOKEN", "RAY_NAMESPACE")
_NOT_PASSED_ON_PREFIXES = ("WANDB_", "RL_SERVICE_", "RAY_JOB_")
_RAY_START = ("ray.scripts.scripts", "start")
_PROC = Path("/proc")
_GRACE_S = 20.0  # for the leaders
_REST_S = 3.0  # for what they leave, which nobody has asked to end
_KILL_S = 10.0


def head_command(
    *,
    port: int,
    dashboard_port: int,
    client_port: int,
    num_cpus: int,
    store_bytes: int,
    folder: str,
    autoscaling_config: Path | None = None,
) -> list[str]:
    """Arguments of the head; the token is in none of them, since all users can read them."""
    config = [] if autoscaling_config is None else [f"--autoscaling-config={autoscaling_config}"]
    return [
        *_node_command(HEAD, num_cpus, store_bytes, folder),
        "--head",
        f"--port={port}",
        "--include-dashboard=true",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={dashboard_port}",
        f"--ray-client-server-port={client_port}",
        *config,
    ]


def worker_command(
    *, name: str, address: str, num_cpus: int, store_bytes: int, folder: str
) -> list[str]:
    """Arguments of a node that joins the head; GPUs are the head's, or they would count twice.

    Args:
        name: of the node.
        address: of the head.
        num_cpus: logical CPUs.
        store_bytes: of the object store.
        folder: for sockets and logs. Nodes that share one and start at the same time may take the
            same name for their sockets, and then one of them dies.
    """
    command = _node_command(name, num_cpus, store_bytes, folder)
    return [*command, f"--address={address}", "--num-gpus=0"]


def _node_command(name: str, num_cpus: int, store_bytes: int, folder: str) -> list[str]:
    return [
        *(sys.executable, "-m", *_RAY_START, "--block"),
        "--disable-usage-stats",
        f"--node-name={name}",
        "--node-ip-address=127.0.0.1",
        f"--num-cpus={num_cpus}",
        f"--object-store-memory={store_bytes}",
        "--dashboard-agent-listen-port=0",
        f"--temp-dir={folder}",
    ]


def node_environment(
    cluster_id: str, name: str, token_path: Path, given: Mapping[str, str]
) -> dict[str, str]:
    """The environment of a node and of all that it starts.

    Args:
        cluster_id: mark of the cluster.
        name: of the node.
        token_path: file with the token.
        given: the environment of the command.
    """
    kept = {
        key: value
        for key, value in given.items()
        if key not in _NOT_PASSED_ON and not key.startswith(_NOT_PASSED_ON_PREFIXES)
    }
    return {
        **kept,
        CLUSTER_MARK: cluster_id,
        NODE_MARK: name,
        # `python` of jobs is the one that runs now.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), given.get("PATH", os.defpath)]),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_path),
        STOP_WAIT_VARIABLE: str(STOP_WAIT_S),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # as in `rl_service.runtime.ray_session`
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",  # how old the resources in use may be
    }


def autoscaler_environment(name: str, node_type: str) -> dict[str, str]:
    """What a node's environment has besides so that Ray's autoscaler recognizes it.

    Args:
        name: of the node, which also is its id for the autoscaler.
        node_type: HEAD or WORKER.
    """
    return {
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": name,
        "RAY_NODE_TYPE_NAME": node_type,
    }


def start_node(
    command: list[str], environment: dict[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Starts a node in a session of its own, which outlives this command."""
    with log.open("wb") as file:
        return subprocess.Popen(
            command,
            env=environment,
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def was_given_up(log: Path) -> bool:
    """Whether a node has ended because Ray lost patience: the machine was too busy."""
    return was_too_slow(_text(log))


def start_failure(name: str, log: Path) -> ClusterError:
    """What to raise for a node that has ended while it started, with its last error or line."""
    lines = [" ".join(line.split()) for line in _text(log).splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    said = (errors or lines or ["it said nothing"])[-1][-300:]
    return ClusterError(
        f"node {name} of the local cluster ended while it started ({said}); free memory, ports "
        f"and room in /tmp, and try again"
    )


def _text(log: Path) -> str:
    try:
        return log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def keep_only_logs(folder: Path) -> None:
    """Removes what a dead node leaves in its folder but its logs, which hold those of jobs.

    The rest is sockets, and spilled objects of any size.
    """
    for path in folder.glob("session_*/*"):
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
        elif path.name != "logs":
            shutil.rmtree(path, ignore_errors=True)


def marked_processes(cluster_id: str, node: str | None = None) -> list[int]:
    """Ids of the running processes of a cluster, or of one of its nodes."""
    wanted = {f"{CLUSTER_MARK}={cluster_id}".encode()}
    if node is not None:
        wanted.add(f"{NODE_MARK}={node}".encode())
    pids = [int(path.name) for path in _PROC.iterdir() if path.name.isdigit()]
    return [pid for pid in pids if wanted <= _environment(pid)]


def is_running(cluster_id: str, pid: int) -> bool:
    """Whether the process runs and is the cluster's; its id may be another process's by now."""
    return f"{CLUSTER_MARK}={cluster_id}".encode() in _environment(pid)


def node_leaders(cluster_id: str) -> dict[str, int]:
    """The running nodes by name, each with the process id of the `ray start` that leads it."""
    return {
        node: pid
        for pid in marked_processes(cluster_id)
        if " ".join(_RAY_START) in command_line(pid)
        and _leads_a_session(pid)  # its forks do not
        and (node := node_of(pid))
    }


def node_of(pid: int) -> str:
    """The name of the node that a process runs on; empty if it has ended."""
    prefix = f"{NODE_MARK}=".encode()
    marks = [entry for entry in _environment(pid) if entry.startswith(prefix)]
    return marks[0].removeprefix(prefix).decode(errors="replace") if marks else ""


def by_number(name: str) -> tuple[int, str]:
    """Sorts `worker-10` after `worker-9`."""
    return len(name), name


def command_line(pid: int) -> str:
    """A process's arguments or the title that it gave itself; empty if it has ended."""
    try:
        line = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return line.replace(b"\0", b" ").decode(errors="replace").strip()


def end_processes(cluster_id: str, leaders: Iterable[int]) -> bool:
    """Ends a cluster: first the leaders of its nodes, which end their own, then what is left.

    Returns:
        Whether all have ended.
    """
    asked = [pid for pid in leaders if is_running(cluster_id, pid)]
    _send(signal.SIGTERM, asked)
    _until(lambda: not any(is_running(cluster_id, pid) for pid in asked), _GRACE_S)
    return _ended(cluster_id, None, _REST_S) or kill_processes(cluster_id)


def kill_processes(cluster_id: str, node: str | None = None) -> bool:
    """Kills a cluster, or one node as a power cut would.

    Returns:
        Whether all have ended.
    """
    deadline = time.monotonic() + _KILL_S
    while time.monotonic() < deadline:
        _send(signal.SIGKILL, marked_processes(cluster_id, node))
        if _ended(cluster_id, node, 1.0):  # what was started meanwhile is hit the next time
            return True
    return False


def _ended(cluster_id: str, node: str | None, timeout_s: float) -> bool:
    # Twice: one that starts another and ends while we look at the list makes it look empty.
    return _until(lambda: not any(marked_processes(cluster_id, node) for _ in range(2)), timeout_s)


def _until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _send(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _leads_a_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def _environment(pid: int) -> set[bytes]:
    """Entries of a process's environment; none if it has ended or is somebody else's."""
    try:
        return set((_PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    except OSError:
        return set()
