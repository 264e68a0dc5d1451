"""Shows the log of a job as it grows, over broken connections, until the job ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rl_service.cluster.dashboard import Dashboard
from rl_service.errors import ClusterError
from rl_service.jobs.client import ray_client
from rl_service.jobs.control import Job, find_job

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_PATIENCE_S = 120.0  # with a cluster that does not answer
_RETRY_S = 1.0

Write = Callable[[str], None]


def read_log(dashboard: Dashboard, job: Job) -> str:
    """The log up to now.

    Raises:
        ClusterError: if the cluster does not answer.
    """
    return str(dashboard.get(f"/api/jobs/{job.id}/logs").get("logs") or "")


def follow_log(dashboard: Dashboard, job: Job, write: Write) -> Job:
    """Writes the log until the job ends.

    Returns:
        The job as it ended. The end of the log is missing, and that is said, if it lies on a node
        that has gone.

    Raises:
        ClusterError: if the cluster is out of reach for minutes; the job may go on.
    """
    return asyncio.run(_follow(dashboard, job, write))


async def _follow(dashboard: Dashboard, job: Job, write: Write) -> Job:
    shown = 0
    client: JobSubmissionClient | None = None
    last_answer = time.monotonic()
    while True:
        try:
            client = client or ray_client(dashboard)
            shown = await _tail(client, job.id, shown, write)
            job = find_job(dashboard, job.id)
            if job.has_ended:
                write(_rest_of_log(dashboard, job, shown))
                return job
            last_answer = time.monotonic()
        except ClusterError as error:
            if time.monotonic() - last_answer > _PATIENCE_S:
                raise ClusterError(
                    f"lost sight of {job.id}, which may go on ({error}); look again with "
                    f"rl-service jobs logs {job.id} --follow"
                ) from error
        await asyncio.sleep(_RETRY_S)


def _rest_of_log(dashboard: Dashboard, job: Job, shown: int) -> str:
    try:
        return read_log(dashboard, job)[shown:]
    except ClusterError as error:
        return f"note: what the log says last cannot be read ({error})\n"


async def _tail(client: JobSubmissionClient, job_id: str, shown: int, write: Write) -> int:
    """Writes what comes after the first `shown` characters until the connection ends.

    Returns:
        How many characters are shown by then.
    """
    import aiohttp

    seen = 0
    try:
        async for text in client.tail_job_logs(job_id):
            new = text[max(0, shown - seen) :]
            seen += len(text)
            if new:
                write(new)
            shown = max(shown, seen)
    except (RuntimeError, OSError, aiohttp.ClientError):
        pass  # the next question finds out what has become of the cluster
    return shown
