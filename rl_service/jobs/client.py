"""Ray's own client for jobs, made so that it asks one cluster alone and says nothing itself."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rl_service.cluster.dashboard import Dashboard
from rl_service.config.text import one_line
from rl_service.errors import ClusterError
from rl_service.jobs.address import ADDRESS_VARIABLES

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient


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
