"""How a node of a local cluster is started: its command, its environment, its log."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from rl_service.cluster.processes import CLUSTER_MARK, NODE_MARK
from rl_service.common.errors import ClusterError
from rl_service.runtime.machine import was_too_slow

HEAD = "head"
STOP_WAIT_VARIABLE = "RAY_JOB_STOP_WAIT_TIME_S"
STOP_WAIT_S = 300
"""Between SIGTERM and SIGKILL for a job that is stopped: time to end an iteration and to save.
Ray's 3 s would cost the work since the last checkpoint."""

# Of the user's own Ray, or of one command; what a job needs of the rest comes with the job.
_NOT_PASSED_ON = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_TOKEN", "RAY_NAMESPACE")
_NOT_PASSED_ON_PREFIXES = ("WANDB_", "RL_SERVICE_", "RAY_JOB_")


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
        *_ray_start(HEAD, num_cpus, store_bytes),
        "--head",
        f"--port={port}",
        "--include-dashboard=true",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={dashboard_port}",
        f"--ray-client-server-port={client_port}",
        f"--temp-dir={folder}",
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
    return [
        *_ray_start(name, num_cpus, store_bytes),
        f"--address={address}",
        "--num-gpus=0",
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


def keep_only_logs(folder: Path) -> None:
    """Removes what a dead node leaves in its folder but its logs, which hold those of jobs.

    The rest is sockets, and spilled objects of any size.
    """
    for path in folder.glob("session_*/*"):
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
        elif path.name != "logs":
            shutil.rmtree(path, ignore_errors=True)


def was_given_up(log: Path) -> bool:
    """Whether a node that has ended did so since Ray had no patience: the machine was too busy."""
    return was_too_slow(_text(log))


def failure(name: str, log: Path) -> ClusterError:
    """What to raise of a node that has ended while it started, with its last words."""
    return ClusterError(
        f"node {name} of the local cluster ended while it started "
        f"({_last_words(log)}); free memory, ports and room in /tmp, and try again"
    )


def _ray_start(name: str, num_cpus: int, store_bytes: int) -> list[str]:
    return [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
        "--disable-usage-stats",
        f"--node-name={name}",
        "--node-ip-address=127.0.0.1",
        f"--num-cpus={num_cpus}",
        f"--object-store-memory={store_bytes}",
        "--dashboard-agent-listen-port=0",
    ]


def _last_words(log: Path) -> str:
    """The last line of a log that speaks of an error, or the last one."""
    lines = [" ".join(line.split()) for line in _text(log).splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return (errors or lines or ["it said nothing"])[-1][-300:]


def _text(log: Path) -> str:
    try:
        return log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
