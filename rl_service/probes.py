"""Tries things that may crash or hang, each in a process of its own and for a limited time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile

_TIME_LIMIT_S = 90.0
_TIME_TO_CLOSE_S = 15.0

_DRAW = """
import sys
from rl_service.config.settings import EnvSettings
from rl_service.errors import EnvError
from rl_service.video import make_drawable_env
try:
    make_drawable_env(EnvSettings(id=sys.argv[1])).close()
except EnvError as error:
    sys.exit(str(error))
"""

# address="local": a cluster of our own even where RAY_ADDRESS points to another one.
_START_RAY = """
import sys
import ray
from rl_service.ray_session import protect_token
protect_token()
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False,
         object_store_memory=100 * 2**20, _temp_dir=sys.argv[1])
ray.get(ray.remote(lambda: 1).remote())
ray.shutdown()
"""


def probe_renderer(env_id: str) -> str | None:
    """Draws an environment; returns what went wrong, or None."""
    return _run([sys.executable, "-c", _DRAW, env_id])


def probe_ray() -> str | None:
    """Starts and ends a local Ray cluster; returns what went wrong, or None."""
    # Ray puts sockets there, and their paths have a limit of about 100 characters.
    with tempfile.TemporaryDirectory(prefix="rls-", ignore_cleanup_errors=True) as folder:
        return _run([sys.executable, "-c", _START_RAY, folder])


def _run(command: list[str]) -> str | None:
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        _, err = process.communicate(timeout=_TIME_LIMIT_S)
    except subprocess.TimeoutExpired:
        _end(process)
        return f"no answer within {_TIME_LIMIT_S:.0f} s"
    except BaseException:  # Ctrl-C reaches only us, since the probe has its own session
        _end(process)
        raise
    if process.returncode == 0:
        return None
    last = err.strip().splitlines()[-1:] or [f"it ended with status {process.returncode}"]
    return last[0]


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a probe and its children: politely, since Ray then ends its own, and then for sure."""
    process.terminate()
    try:
        process.communicate(timeout=_TIME_TO_CLOSE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
