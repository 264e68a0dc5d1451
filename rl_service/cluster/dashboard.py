"""Talks to the dashboard of a Ray cluster over HTTP; what goes wrong becomes one line."""

from __future__ import annotations

import logging
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import httpx

from rl_service.common.errors import ClusterError
from rl_service.common.text import one_line

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_TIMEOUT = httpx.Timeout(8.0, connect=4.0)
"""Seconds; an address where nobody is must be told within a few."""


_DROPPED = re.compile(r"disconnected|closed connection")
"""What httpx says of a connection that ended before the answer did."""
_MOST_ROWS = 10_000
"""That Ray lists; without a limit it lists 100."""
_SHOWN_CHARACTERS = 200
"""Of the last line of an error, which in a traceback is the one that says what happened."""

ADDRESS_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")  # in Ray's order


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

    def get(self, path: str) -> dict[str, Any]:
        """A JSON object from the dashboard.

        Raises:
            ClusterError: if nobody answers, the token is refused, the dashboard itself fails, or
                it is no Ray dashboard.
        """
        answer = self._get(path)
        return answer if isinstance(answer, dict) else {}

    def get_list(self, path: str) -> list[dict[str, Any]]:
        """A JSON list from the dashboard.

        Raises:
            ClusterError: as `get`.
        """
        answer = self._get(path)
        return answer if isinstance(answer, list) else []

    def _get(self, path: str) -> Any:
        try:
            response = self._client.get(self.url + path)
        except (httpx.NetworkError, httpx.TimeoutException) as error:
            raise self._no_answer(error) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            # A dashboard that dies drops connections; what speaks another protocol answers.
            raise (
                self._no_answer(error) if _DROPPED.search(str(error)) else self._no_dashboard()
            ) from error
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
        return ClusterError(
            f"no Ray cluster answers at {self.url} ({_reason(error)}); check host and port "
            f"(the dashboard's, usually 8265), or start one here: rl-service cluster up"
        )

    def _no_dashboard(self) -> ClusterError:
        return ClusterError(
            f"what answers at {self.url} is no Ray dashboard; give the dashboard's address, "
            f"usually http://HOST:8265 (6379 is for Ray's own processes, 10001 for ray://)"
        )

    def _failed(self, response: httpx.Response) -> ClusterError:
        said = response.text.strip().splitlines() or ["it did not say why"]
        return ClusterError(
            f"the dashboard at {self.url} answered {response.status_code} {response.reason_phrase} "
            f"({one_line(said[-1])[:_SHOWN_CHARACTERS]}); try again, or look at its log on the head"
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


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "it takes too long"
    return re.sub(r"^\[Errno -?\d+\] ", "", one_line(error)).lower().rstrip(".")


def ray_client(dashboard: Dashboard) -> JobSubmissionClient:
    """Ray's client for a cluster that has answered.

    Raises:
        ClusterError: if it does not answer any more.
    """
    for name in ADDRESS_VARIABLES:  # they would win over the address given here
        os.environ.pop(name, None)
    _keep_token_from_others(dashboard)
    from ray.job_submission import JobSubmissionClient

    for module in ("dashboard_sdk", "job.sdk"):  # the commands say it shorter
        logging.getLogger(f"ray.dashboard.modules.{module}").setLevel(logging.WARNING)
    try:
        return JobSubmissionClient(dashboard.url, headers=dict(dashboard.headers))
    except Exception as error:  # of requests, of Ray; all of it means the same here
        raise ClusterError(
            f"the cluster at {dashboard.url} does not answer any more ({one_line(error)[:200]}); "
            f"try again"
        ) from error


def _keep_token_from_others(dashboard: Dashboard) -> None:
    """Lets Ray's client reach the cluster itself, with its token.

    What it is made of would take a proxy of the environment, and a password for that host, or for
    any, from `~/.netrc` instead of the token.
    """
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    hosts = ",".join(filter(None, [given, urlsplit(dashboard.url).hostname]))
    os.environ.update(no_proxy=hosts, NO_PROXY=hosts, NETRC=os.devnull)
