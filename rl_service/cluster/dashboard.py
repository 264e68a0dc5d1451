"""Which cluster a command means, and talking to its dashboard; what goes wrong becomes one line.

Ray's `JobSubmissionClient` submits, stops and follows jobs; the rest is asked here, since it waits
without a limit, sends the token through proxies or replaces it from `~/.netrc`, has one error for
all of a busy (429), a broken and no dashboard, lists no nodes, and takes seconds to import.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import httpx

from custom_models.text import brief, one_line
from rl_service.cluster.state import LocalCluster, load_cluster, token_path
from rl_service.common.errors import ClusterError

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_TIMEOUT = httpx.Timeout(8.0, connect=4.0)
"""Seconds; an address where nobody answers is reported soon."""
_DROPPED = re.compile(r"disconnected|closed connection")
"""What httpx says of a connection that ended before the answer did."""
_MOST_ROWS = 10_000
"""At most that Ray lists; without a limit it lists 100."""
_SHOWN_CHARACTERS = 200
"""Of the last line of an error, which in a traceback is the one that says what happened."""
_ADDRESS_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")  # in Ray's order
_LOOPBACK, _DASHBOARD_PORT = "127.0.0.1", 8265
_THIS_MACHINE = re.compile(r"(localhost|127\.0\.0\.1)(:(?P<port>[0-9]+))?", re.A | re.I)
_HOST_AND_PORT = re.compile(r"(?P<host>[\w.-]+|\[[0-9a-fA-F:]+\])(:(?P<port>[0-9]{1,5}))?", re.A)


class Versions(NamedTuple):
    """What the nodes of a cluster run."""

    ray: str
    python: str


class Dashboard:
    """One cluster, by the address of its dashboard.

    Args:
        url: `http://HOST:PORT`.
        token: that the cluster asks for; None sends none.
        token_source: where the token came from, for the message if it is refused.
    """

    def __init__(self, url: str, token: str | None = None, token_source: str = "") -> None:
        self.url = url
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._token_source = token_source
        # No redirects and no proxy from the environment: the token is for this address alone.
        self._client = httpx.Client(timeout=_TIMEOUT, headers=self.headers, trust_env=False)

    def versions(self) -> Versions:
        """Asks for the versions, and finds out whether there is a cluster and it lets us in.

        Raises:
            ClusterError: if not.
        """
        ray_version = self.get("/api/version").get("ray_version")
        metadata = self.get("/api/v0/cluster_metadata").get("data") or {}
        if not ray_version:
            raise self._no_dashboard()
        return Versions(ray_version, metadata.get("pythonVersion") or "unknown")

    def nodes(self) -> list[dict[str, Any]]:
        """All nodes, also dead ones: `node_id`, `node_name`, `state`, `resources_total` and more.

        Raises:
            ClusterError: as `get`.
        """
        answer = self.get(f"/api/v0/nodes?limit={_MOST_ROWS}")
        result = (answer.get("data") or {}).get("result") or {}
        return list(result.get("result") or [])

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs that were submitted: `submission_id`, `status`, `entrypoint` and more.

        Raises:
            ClusterError: as `get`.
        """
        answer = self._get("/api/jobs/")
        rows = answer if isinstance(answer, list) else []
        return [row for row in rows if row.get("submission_id")]

    def get(self, path: str) -> dict[str, Any]:
        """A JSON object from the dashboard.

        Raises:
            ClusterError: if nobody answers, the token is refused, the dashboard itself fails, or
                it is not a Ray dashboard.
        """
        answer = self._get(path)
        return answer if isinstance(answer, dict) else {}

    def _get(self, path: str) -> Any:
        try:
            response = self._client.get(self.url + path)
        except (httpx.NetworkError, httpx.TimeoutException) as error:
            raise self._no_answer(error) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            # A dashboard that dies drops connections; what speaks another protocol answers.
            dropped = _DROPPED.search(str(error))
            raise (self._no_answer(error) if dropped else self._no_dashboard()) from error
        if response.status_code in (401, 403):
            raise self._refused(response.status_code)
        if response.status_code == 429 or response.is_server_error:
            raise self._failed(response)
        try:
            response.raise_for_status()
            return response.json()
        except (httpx.HTTPStatusError, ValueError) as error:
            raise self._no_dashboard() from error

    def _no_answer(self, error: Exception) -> ClusterError:
        if isinstance(error, httpx.TimeoutException):
            reason = "it takes too long"
        else:
            reason = re.sub(r"^\[Errno -?\d+\] ", "", one_line(error)).lower().rstrip(".")
        return ClusterError(
            f"no Ray cluster answers at {self.url} ({reason}); check host and port "
            f"(the dashboard's, usually 8265), or start one here: rl-service cluster up"
        )

    def _no_dashboard(self) -> ClusterError:
        return ClusterError(
            f"what answers at {self.url} is not a Ray dashboard; give the dashboard's address, "
            f"usually http://HOST:8265 (6379 is for Ray's own processes, 10001 for ray://)"
        )

    def _failed(self, response: httpx.Response) -> ClusterError:
        said = response.text.strip().splitlines() or ["it did not say why"]
        return ClusterError(
            f"the dashboard at {self.url} answered {response.status_code} {response.reason_phrase} "
            f"({brief(said[-1], _SHOWN_CHARACTERS)}); try again, or look at its log on the head"
        )

    def _refused(self, status: int) -> ClusterError:
        if status == 401 and not self.headers:
            return ClusterError(
                f"the cluster at {self.url} asks for a token; set RAY_AUTH_TOKEN, or "
                f"RAY_AUTH_TOKEN_PATH to a file that holds it"
            )
        return ClusterError(
            f"the cluster at {self.url} does not take the token from {self._token_source}; set "
            f"RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to a file that holds the cluster's"
        )


def ray_client(dashboard: Dashboard) -> JobSubmissionClient:
    """Ray's client for a cluster that has answered.

    Raises:
        ClusterError: if it does not answer any more.
    """
    for name in _ADDRESS_VARIABLES:  # they would win over the address given here
        os.environ.pop(name, None)
    # The client would take a proxy of the environment, and a password for that host, or for any,
    # from `~/.netrc` instead of the token.
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    hosts = ",".join(filter(None, [given, urlsplit(dashboard.url).hostname]))
    os.environ.update(no_proxy=hosts, NO_PROXY=hosts, NETRC=os.devnull)
    from ray.job_submission import JobSubmissionClient

    for module in ("dashboard_sdk", "job.sdk"):  # the commands say it shorter
        logging.getLogger(f"ray.dashboard.modules.{module}").setLevel(logging.WARNING)
    try:
        return JobSubmissionClient(dashboard.url, headers=dict(dashboard.headers))
    except Exception as error:  # of requests, of Ray; all of it means the same here
        raise ClusterError(
            f"the cluster at {dashboard.url} does not answer any more "
            f"({brief(error, _SHOWN_CHARACTERS)}); try again"
        ) from error


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
    source, given = f"--address {address}", address
    for name in _ADDRESS_VARIABLES:
        if given is None and environment.get(name):
            source, given = f"{name}={environment[name]}", environment[name]
    given = None if given is None else _bare(given)
    local = _local_cluster(given)
    if local is not None:
        flag = "" if address is None else f" --address {address}"
        return Connection(local_dashboard(local), local, flag)
    if given is None:
        raise ClusterError(
            "there is no cluster to ask: start one here with rl-service cluster up, or give "
            "--address http://HOST:8265 or RAY_ADDRESS"
        )
    url = _dashboard_url(given, source)
    flag = "" if address is None else f" --address {url}"
    return Connection(Dashboard(url, *_token(environment)), None, flag)


def _local_cluster(given: str | None) -> LocalCluster | None:
    """The local cluster if it is up and meant, by one of its addresses or by none."""
    if given is not None and not given.startswith(f"{_LOOPBACK}:"):
        return None  # so its file need not be whole for a cluster elsewhere
    local = load_cluster()
    if local is None or not local.is_up:
        return None
    return local if given in (None, local.address, _bare(local.dashboard_url)) else None


def local_dashboard(cluster: LocalCluster) -> Dashboard:
    """The dashboard of the local cluster, with its token.

    Raises:
        ClusterError: if the token cannot be read.
    """
    path = token_path()
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ClusterError(
            f"the local cluster's token in {path} cannot be read: {error.strerror}; start the "
            f"cluster again: rl-service cluster down, then up"
        ) from error
    return Dashboard(cluster.dashboard_url, token, str(path))


def _bare(address: str) -> str:
    """The address without `http://`; one of this machine as HOST:PORT."""
    bare = address.strip().removeprefix("http://").rstrip("/")
    match = _THIS_MACHINE.fullmatch(bare)
    return f"{_LOOPBACK}:{match['port'] or _DASHBOARD_PORT}" if match else bare


def _dashboard_url(given: str, source: str) -> str:
    remedy = "give the dashboard's address: http://HOST:8265"
    if given.startswith("ray://"):
        raise ClusterError(f"{source} is for Ray Client, and jobs go over HTTP; {remedy}")
    scheme, _, rest = given.rpartition("://")
    match = _HOST_AND_PORT.fullmatch(rest)
    if scheme not in ("", "https") or match is None or given == "auto":
        raise ClusterError(f"{source} is not an address that jobs can be sent to; {remedy}")
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
            f"the token in {path} cannot be read: {reason}; fix RAY_AUTH_TOKEN_PATH, or give "
            f"RAY_AUTH_TOKEN"
        ) from error
