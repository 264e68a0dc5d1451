"""Which cluster a command means, and the token that it asks for."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rl_service.cluster.dashboard import ADDRESS_VARIABLES, Dashboard
from rl_service.cluster.local import is_up
from rl_service.cluster.state import LocalCluster, load_cluster
from rl_service.cluster.status import local_dashboard
from rl_service.common.errors import ClusterError

_LOOPBACK, _DASHBOARD_PORT = "127.0.0.1", 8265
_THIS_MACHINE = re.compile(r"(localhost|127\.0\.0\.1)(:(?P<port>[0-9]+))?", re.A | re.I)
_HOST_AND_PORT = re.compile(r"(?P<host>[\w.-]+|\[[0-9a-fA-F:]+\])(:(?P<port>[0-9]{1,5}))?", re.A)


class Connection(NamedTuple):
    """A cluster that has answered nothing yet."""

    dashboard: Dashboard
    local: LocalCluster | None
    """The cluster of `rl-service cluster up`, if it is that one: it shares our files."""
    flag: str
    """What a further command needs to find the same cluster; empty if it needs nothing."""


def find_cluster(address: str | None, environment: Mapping[str, str] = os.environ) -> Connection:
    """The cluster at `address`, else in the environment, else the local one.

    Args:
        address: of the dashboard, with or without `http://`.
        environment: may hold an address and a token.

    Raises:
        ClusterError: if there is none, or the address cannot be one of a dashboard.
    """
    source, given = _given(address, environment)
    local = _local_cluster() if given is None or _is_this_machine(given) else None
    if given is None:
        if local is None:
            raise ClusterError(
                "there is no cluster to ask: start one here with rl-service cluster up, or give "
                "--address http://HOST:8265 or RAY_ADDRESS"
            )
        return Connection(local_dashboard(local), local, "")
    if local is not None and given in (local.address, _bare(local.dashboard_url)):
        return Connection(local_dashboard(local), local, "" if address is None else _flag(address))
    token, where = _token(environment)
    url = _dashboard_url(given, source)
    return Connection(Dashboard(url, token, where), None, _flag(url) if address else "")


def _given(address: str | None, environment: Mapping[str, str]) -> tuple[str, str | None]:
    """Where the address was given, and the address without `http://`."""
    if address is not None:
        return f"--address {address}", _bare(address)
    for name in ADDRESS_VARIABLES:
        if environment.get(name):
            return f"{name}={environment[name]}", _bare(environment[name])
    return "", None


def _bare(address: str) -> str:
    bare = address.strip().removeprefix("http://").rstrip("/")
    match = _THIS_MACHINE.fullmatch(bare)
    return f"{_LOOPBACK}:{match['port'] or _DASHBOARD_PORT}" if match else bare


def _is_this_machine(given: str) -> bool:
    """Whether the local cluster can be meant; its file need not be whole for any other one."""
    return given.startswith(f"{_LOOPBACK}:")


def _local_cluster() -> LocalCluster | None:
    cluster = load_cluster()
    return cluster if cluster is not None and is_up(cluster) else None


def _dashboard_url(given: str, source: str) -> str:
    remedy = "give the dashboard's address: http://HOST:8265"
    if given.startswith("ray://"):
        raise ClusterError(f"{source} is for Ray Client, and jobs go over HTTP; {remedy}")
    scheme, _, rest = given.rpartition("://")
    match = _HOST_AND_PORT.fullmatch(rest)
    if scheme not in ("", "https") or match is None or given == "auto":
        raise ClusterError(f"{source} is no address that jobs can be sent to; {remedy}")
    if not 0 < int(match["port"] or _DASHBOARD_PORT) < 2**16:
        raise ClusterError(f"{source} has a port that does not exist; {remedy}")
    port = match["port"] or ("443" if scheme else _DASHBOARD_PORT)
    return f"{scheme or 'http'}://{match['host']}:{port}"


def _token(environment: Mapping[str, str]) -> tuple[str | None, str]:
    """The token and where it is from, in Ray's order; Ray's own file only where Ray would send it.

    Raises:
        ClusterError: if the file cannot be read.
    """
    if environment.get("RAY_AUTH_TOKEN"):
        return environment["RAY_AUTH_TOKEN"].strip(), "RAY_AUTH_TOKEN"
    named = environment.get("RAY_AUTH_TOKEN_PATH")
    own = Path("~/.ray/auth_token").expanduser()
    if named is None and (environment.get("RAY_AUTH_MODE") != "token" or not own.is_file()):
        return None, ""
    path = Path(named) if named else own
    try:
        return path.read_text(encoding="utf-8").strip(), str(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ClusterError(
            f"the token in {path} cannot be read: {reason}; mend RAY_AUTH_TOKEN_PATH, or give "
            f"RAY_AUTH_TOKEN"
        ) from error


def _flag(address: str) -> str:
    return f" --address {address}"
