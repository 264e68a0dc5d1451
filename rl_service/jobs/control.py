"""The jobs of a cluster: which there are, how they do, and how to stop them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from rl_service.cluster.dashboard import Dashboard
from rl_service.cluster.local import is_up
from rl_service.cluster.nodes import STOP_WAIT_S
from rl_service.cluster.state import load_cluster
from rl_service.cluster.status import local_dashboard
from rl_service.config.text import one_line
from rl_service.errors import ClusterError, JobError
from rl_service.jobs.client import ray_client

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
_AFTER_KILL_S = 15.0  # from SIGKILL to the status that tells of it
_POLL_S = 0.5

Tell = Callable[[str], None]


class Job(NamedTuple):
    id: str
    name: str
    status: str
    """`PENDING`, `RUNNING`, `SUCCEEDED`, `FAILED` or `STOPPED`."""
    message: str
    command: str
    """As it was submitted."""
    git_commit: str | None
    """Of the folder that was submitted; `+` after it: with changes."""
    started_at_s: float | None
    """Unix time."""
    ended_at_s: float | None
    exit_code: int | None
    node_id: str | None
    """Of the node that runs the command; its rollout workers may be on others."""

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED


def list_jobs(dashboard: Dashboard) -> list[Job]:
    """All jobs that were submitted, the newest first.

    Raises:
        ClusterError: if the cluster does not answer.
    """
    rows = [row for row in dashboard.get_list("/api/jobs/") if row.get("submission_id")]
    return sorted(map(_job, rows), key=lambda job: -(job.started_at_s or 0.0))


def find_job(dashboard: Dashboard, wanted: str) -> Job:
    """The job of an id, or of the only id that begins so.

    Raises:
        ClusterError: if the cluster does not answer.
        JobError: if there is none, or more than one.
    """
    jobs = list_jobs(dashboard)
    exact = [job for job in jobs if job.id == wanted]
    fits = exact or [job for job in jobs if wanted and job.id.startswith(wanted)]
    if len(fits) == 1:
        return fits[0]
    if fits:
        ids = ", ".join(job.id for job in fits[:4]) + (", …" if len(fits) > 4 else "")
        raise JobError(f"{wanted} means {len(fits)} jobs: {ids}; give more of the id")
    raise JobError(
        f"there is no job {wanted} at {dashboard.url}; rl-service jobs list shows all of them"
    )


def stop_job(dashboard: Dashboard, job: Job, tell: Tell) -> Job:
    """Asks a job to stop, and waits until it has ended.

    A training ends its iteration and saves before it does; after `STOP_WAIT_S` Ray kills it.

    Returns:
        The job as it is then.

    Raises:
        ClusterError: if the cluster does not answer.
        JobError: if the job does not end.
    """
    if job.has_ended:
        return job
    _ask_to_stop(dashboard, job)
    tell(f"asked {job.id} to stop; a training ends its iteration and saves first")
    return _wait_until_ended(dashboard, job, STOP_WAIT_S + _AFTER_KILL_S)


def stop_all_local(tell: Tell) -> int:
    """Stops the jobs of the local cluster, all at once; a cluster that is dead has none.

    Returns:
        How many there were.
    """
    cluster = load_cluster()
    if cluster is None or not is_up(cluster):
        return 0
    try:
        dashboard = local_dashboard(cluster)
        jobs = [job for job in list_jobs(dashboard) if not job.has_ended]
        for job in jobs:
            _ask_to_stop(dashboard, job)
            tell(f"asked {job.id} to stop; a training ends its iteration and saves first")
        for job in jobs:
            _wait_until_ended(dashboard, job, STOP_WAIT_S + _AFTER_KILL_S)
    except (ClusterError, JobError) as error:
        tell(f"note: jobs may have lost what they did since their last checkpoint ({error})")
        return 0
    return len(jobs)


def _ask_to_stop(dashboard: Dashboard, job: Job) -> None:
    try:
        ray_client(dashboard).stop_job(job.id)
    except RuntimeError as error:  # what Ray's client raises for any answer but the expected one
        raise JobError(f"{job.id} cannot be stopped: {one_line(error)[:300]}; try again") from error


def _wait_until_ended(dashboard: Dashboard, job: Job, timeout_s: float) -> Job:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        job = find_job(dashboard, job.id)
        if job.has_ended:
            return job
        time.sleep(_POLL_S)
    raise JobError(
        f"{job.id} was asked to stop {timeout_s:.0f} s ago and is {job.status.lower()} still; look "
        f"at its log: rl-service jobs logs {job.id}"
    )


def _job(row: dict[str, Any]) -> Job:
    metadata = row.get("metadata") or {}
    return Job(
        id=row["submission_id"],
        name=metadata.get("job_name") or row["submission_id"],
        status=row["status"],
        message=one_line(row.get("message") or ""),
        command=metadata.get("command") or row.get("entrypoint") or "",
        git_commit=metadata.get("git_commit"),
        started_at_s=_seconds(row.get("start_time")),
        ended_at_s=_seconds(row.get("end_time")),
        exit_code=row.get("driver_exit_code"),
        node_id=row.get("driver_node_id"),
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if not milliseconds else milliseconds / 1000.0
