"""Ray workers that are forked from a process that has already loaded torch and RLlib.

A new Ray worker is a new Python, which spends seconds of CPU time on imports. Here the first worker
of a run on a node leaves a server process behind that has imported everything and is otherwise
idle; it forks itself into each worker that the run starts there, within milliseconds.

Ray runs this file in place of Python (`py_executable` of a runtime environment). It passes its
arguments, variables and standard streams to the server and exits; Ray learns the worker's process
id from the worker. If anything fails, it becomes the worker itself, as if it were not there.

A server belongs to one run (by a random token), job, user, node, import path and folder, so nobody
gets another version's code. It exits with its node, or a minute after its last worker.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import runpy
import select
import shlex
import socket
import struct
import sys
import traceback
from typing import Any, NoReturn

TRAINING_MODULES = ("rl_service.algorithms.ppo", "rl_service.training.trainer")
"""What the workers of a training import."""

# $1: Python, $2: this file, $3 and $4: token and modules; the rest is of Ray. Another node may have
# its Python elsewhere, or not this file.
_COMMAND = (
    'python=$(command -v "$1" || command -v python3); file=$2; token=$3; modules=$4; shift 4; '
    'if [ -f "$file" ]; then exec "$python" -P "$file" "$token" "$modules" "$@"; '
    'else exec "$python" "$@"; fi'
)
_RAYLET = "RAY_RAYLET_PID"  # set by Ray
_IDLE_S = 60.0
_IMPORTS_S = 120.0  # at most, even on a busy machine
_REQUEST_S = 10.0
_LENGTH = struct.Struct("!I")


def py_executable(modules: tuple[str, ...] = TRAINING_MODULES) -> str:
    """The command for `runtime_env={"py_executable": ...}`, for one run.

    Args:
        modules: that the workers import.
    """
    token = os.urandom(8).hex()
    return shlex.join(
        ["bash", "-c", _COMMAND, "ray-worker", sys.executable, __file__, token, ",".join(modules)]
    )


def main(token: str, modules: str, *command: str) -> NoReturn:
    """Passes the worker to the server, or becomes it.

    Args:
        token: of the run.
        modules: to import, separated by commas.
        *command: Ray's script of a worker and its arguments.
    """
    if _RAYLET not in os.environ or not _is_forked(token, modules, command):
        os.execv(sys.executable, [sys.executable, *command])
    os._exit(0)  # an ordinary exit takes longer than all before


def _is_forked(token: str, modules: str, command: tuple[str, ...]) -> bool:
    try:
        address = _address(token, modules)
        _start_server(address, modules.split(","))
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_IMPORTS_S)
            connection.connect(address)
            return _is_ours(connection) and _request(connection, command)
    except OSError:
        return False


def _address(token: str, modules: str) -> str:
    """In the abstract namespace, where names go with the process that listens."""
    # Ray reads its own variables when it is imported, among them the job that a worker is of.
    ray = [os.environ[_RAYLET], os.environ.get("RAY_JOB_ID", "")]
    parts = [token, modules, *ray, str(os.getuid()), sys.executable, os.getcwd()]
    return "\0rl-service-" + hashlib.sha256("\0".join(parts + sys.path).encode()).hexdigest()


def _is_ours(connection: socket.socket) -> bool:
    """Whether this user is at the other end; anybody on the machine may listen or connect."""
    credentials = struct.Struct("3i")
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    return bool(credentials.unpack(found)[1] == os.getuid())


def _request(connection: socket.socket, command: tuple[str, ...]) -> bool:
    request = {"command": command, "environ": dict(os.environ), "group": os.getpgrp()}
    body = json.dumps(request).encode()
    socket.send_fds(connection, [_LENGTH.pack(len(body))], [0, 1, 2])
    connection.sendall(body)
    return connection.recv(1) == b"1"  # nothing if the server's imports failed


def _start_server(address: str, modules: list[str]) -> None:
    """Leaves a server behind, unless there is one."""
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(address)
        except OSError:
            return
        listener.listen(1024)  # whoever connects from here on waits for the imports
        if os.fork() == 0:
            try:
                worker = _serve(listener, modules)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            _run(worker)


def _serve(listener: socket.socket, modules: list[str]) -> dict[str, Any]:
    """Imports, then forks for each request until the node ends or no worker is left.

    Returns:
        In each fork, the request of its worker.
    """
    os.setpgrp()
    raylet = os.pidfd_open(int(os.environ[_RAYLET]))
    for module in modules:
        importlib.import_module(module)
    workers: dict[int, int] = {}
    """Process ids by the descriptors that become readable when they end."""
    while True:
        sources: list[Any] = [listener, raylet, *workers]
        ready, _, _ = select.select(sources, [], [], None if workers else _IDLE_S)
        if not ready or raylet in ready:
            os._exit(0)
        for ended in workers.keys() & set(ready):
            with contextlib.suppress(ChildProcessError):  # Ray lets the kernel reap them
                os.waitpid(workers.pop(ended), 0)
            os.close(ended)
        if listener not in ready:
            continue
        connection, _ = listener.accept()
        with connection:
            received = _receive(connection)
            if received is None:
                continue
            request, streams = received
            worker = os.fork()
            if worker == 0:
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                listener.close()
                for unused in (raylet, *workers, *streams):
                    os.close(unused)
                return request
            # Ray ends a worker with its process group, in which the worker's own children are.
            os.setpgid(worker, request["group"])
            connection.sendall(b"1")
            workers[os.pidfd_open(worker)] = worker
            for stream in streams:
                os.close(stream)


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """A request and its standard streams; None from somebody else, or one that gave up."""
    if not _is_ours(connection):
        return None
    try:
        connection.settimeout(_REQUEST_S)
        header, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, 3)
        with connection.makefile("rb") as stream:
            return json.loads(stream.read(*_LENGTH.unpack(header))), streams
    except (OSError, ValueError, struct.error):
        return None


def _run(worker: dict[str, Any]) -> NoReturn:
    """Is that worker."""
    import numpy as np

    np.random.seed()  # its global state would be that of all forks; `random` does this by itself
    os.environ.clear()
    os.environ.update(worker["environ"])
    script = worker["command"][0]
    sys.argv = worker["command"]
    sys.path.insert(0, os.path.dirname(script))  # as Python does
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    sys.exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
