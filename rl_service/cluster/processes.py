"""The processes of a local cluster, which carry its mark in their environment, and how they end.

A mark is inherited by everything that a node starts, jobs and rollout workers as well, and by
nothing else: so ending a cluster cannot hit another Ray on the machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

CLUSTER_MARK, NODE_MARK = "RL_SERVICE_CLUSTER_ID", "RL_SERVICE_CLUSTER_NODE"

_PROC = Path("/proc")
_STARTER = "ray.scripts.scripts start"  # what `rl_service.cluster.nodes` runs
_GRACE_S = 20.0  # for the leaders
_REST_S = 3.0  # for what they leave, which nobody has asked to end
_KILL_S = 10.0


def marked_processes(cluster_id: str, node: str | None = None) -> list[int]:
    """Ids of the running processes of a cluster, or of one of its nodes."""
    wanted = {f"{CLUSTER_MARK}={cluster_id}".encode()}
    if node is not None:
        wanted.add(f"{NODE_MARK}={node}".encode())
    return [pid for pid in _all_processes() if wanted <= _environment(pid)]


def is_running(cluster_id: str, pid: int) -> bool:
    """Whether the process runs and is the cluster's; a number may be another process's by now."""
    return f"{CLUSTER_MARK}={cluster_id}".encode() in _environment(pid)


def node_leaders(cluster_id: str) -> dict[str, int]:
    """The running nodes by name, each with the process id of the `ray start` that leads it."""
    return {
        node: pid
        for pid in marked_processes(cluster_id)
        if _STARTER in command_line(pid)
        and _leads_a_session(pid)  # its forks do not
        and (node := node_of(pid))
    }


def node_of(pid: int) -> str:
    """The name of the node that a process runs on; empty if it has ended."""
    prefix = f"{NODE_MARK}=".encode()
    marks = [entry for entry in _environment(pid) if entry.startswith(prefix)]
    return marks[0].removeprefix(prefix).decode(errors="replace") if marks else ""


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
    return _gone(cluster_id, None, _REST_S) or kill_processes(cluster_id)


def kill_processes(cluster_id: str, node: str | None = None) -> bool:
    """Kills a cluster, or one node as a power cut would.

    Returns:
        Whether all have ended.
    """
    deadline = time.monotonic() + _KILL_S
    while time.monotonic() < deadline:
        _send(signal.SIGKILL, marked_processes(cluster_id, node))
        if _gone(cluster_id, node, 1.0):  # what was started meanwhile is hit the next time
            return True
    return False


def _gone(cluster_id: str, node: str | None, timeout_s: float) -> bool:
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


def _all_processes() -> list[int]:
    return [int(path.name) for path in _PROC.iterdir() if path.name.isdigit()]


def _environment(pid: int) -> set[bytes]:
    """Entries of a process's environment; none if it has ended or is somebody else's."""
    try:
        return set((_PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    except OSError:
        return set()
