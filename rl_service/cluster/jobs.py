"""The jobs of a cluster: list them, stop them, follow their logs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from custom_models.text import brief, one_line
from rl_service.cluster.dashboard import Dashboard, local_dashboard, ray_client
from rl_service.cluster.entrypoint import ENTRYPOINT_MODULE
from rl_service.cluster.nodes import STOP_WAIT_S
from rl_service.cluster.state import load_cluster
from rl_service.common.errors import ClusterError, JobError

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
_AFTER_KILL_S = 15.0  # from SIGKILL to the status that says so
_PENDING_S = 5.0  # for a job that is just starting; Ray stops others only when they have CPUs
_POLL_S = 0.5
_PATIENCE_S = 120.0  # with a cluster that does not answer
_RETRY_S = 1.0

OnMessage = Callable[[str], None]


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
    verb: str | None
    """Our command that it runs: `train`, `tune`, …; None if `rl-service submit` did not send it."""

    @property
    def has_ended(self) -> bool:
        return self.status in _ENDED


def list_jobs(dashboard: Dashboard) -> list[Job]:
    """All jobs that were submitted, the newest first.

    Raises:
        ClusterError: if the cluster does not answer.
    """
    return sorted(map(_job, dashboard.jobs()), key=lambda job: -(job.started_at_s or 0.0))


def _job(row: dict[str, Any]) -> Job:
    metadata = row.get("metadata") or {}
    entrypoint = row.get("entrypoint") or ""
    _, ours, arguments = entrypoint.partition(f" -m {ENTRYPOINT_MODULE} ")
    return Job(
        id=row["submission_id"],
        name=metadata.get("job_name") or row["submission_id"],
        status=row["status"],
        message=one_line(row.get("message") or ""),
        command=metadata.get("command") or entrypoint,
        git_commit=metadata.get("git_commit"),
        started_at_s=_seconds(row.get("start_time")),
        ended_at_s=_seconds(row.get("end_time")),
        exit_code=row.get("driver_exit_code"),
        node_id=row.get("driver_node_id"),
        verb=arguments.split(maxsplit=1)[0] if ours else None,
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if not milliseconds else milliseconds / 1000.0


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


def stop_job(dashboard: Dashboard, job: Job, on_message: OnMessage) -> Job:
    """Asks a job to stop, and waits until it has ended.

    A training ends its iteration and saves first; after `STOP_WAIT_S` Ray kills it. A job that
    still waits for CPUs and GPUs stops only when it has them, and this does not wait for that.

    Returns:
        The job as it is then: ended, or still `PENDING`.

    Raises:
        ClusterError: if the cluster does not answer.
        JobError: if the job does not end.
    """
    if job.has_ended:
        return job
    _ask_to_stop(dashboard, job, on_message)
    return _wait_until_ended(dashboard, job, _deadline())


def stop_all_local(on_message: OnMessage) -> int:
    """Stops the jobs of the local cluster, all at once; a cluster that is dead has none.

    One that cannot be asked, or does not end, does not keep the others from saving. Those that have
    not started yet have nothing to save, and are not waited for.

    Returns:
        How many have stopped; `on_message` receives why the others have not.
    """
    cluster = load_cluster()
    if cluster is None or not cluster.is_up:
        return 0
    jobs: list[Job] = []
    with _reported(on_message, "jobs"):
        dashboard = local_dashboard(cluster)
        jobs = [job for job in list_jobs(dashboard) if not job.has_ended]
    asked, num_ended, deadline = [], 0, _deadline()
    for job in jobs:
        with _reported(on_message, job.id):
            _ask_to_stop(dashboard, job, on_message)
            asked.append(job)
    for job in asked:
        if job.status != "PENDING":
            with _reported(on_message, job.id):
                _wait_until_ended(dashboard, job, deadline)
                num_ended += 1
    return num_ended


@contextlib.contextmanager
def _reported(on_message: OnMessage, what: str) -> Iterator[None]:
    try:
        yield
    except (ClusterError, JobError) as error:
        on_message(f"note: {what} may have lost what came after the last checkpoint ({error})")


def _ask_to_stop(dashboard: Dashboard, job: Job, on_message: OnMessage) -> None:
    try:
        ray_client(dashboard).stop_job(job.id)
    except ClusterError:
        raise
    except Exception as error:  # of Ray's client for an odd answer, of requests for none
        raise JobError(f"{job.id} cannot be stopped: {brief(error)}; try again") from error
    on_message(f"asked {job.id} to stop; a training ends its iteration and saves first")


def _deadline() -> float:
    return time.monotonic() + STOP_WAIT_S + _AFTER_KILL_S


def _wait_until_ended(dashboard: Dashboard, job: Job, deadline: float) -> Job:
    """The job as it ended; a dashboard that is slow or away for a while is asked again."""
    problem = ""
    pending_until = time.monotonic() + _PENDING_S
    while time.monotonic() < deadline:
        try:
            job, problem = find_job(dashboard, job.id), ""
        except ClusterError as error:
            problem = f" ({error})"
        if job.has_ended or (job.status == "PENDING" and time.monotonic() > pending_until):
            return job
        time.sleep(_POLL_S)
    raise JobError(
        f"{job.id} was asked to stop minutes ago and is still {job.status.lower()}{problem}; look "
        f"at its log: rl-service jobs logs {job.id}"
    )


def read_log(dashboard: Dashboard, job: Job) -> str:
    """The log up to now.

    Raises:
        ClusterError: if the cluster does not answer.
    """
    return str(dashboard.get(f"/api/jobs/{job.id}/logs").get("logs") or "")


def follow_log(dashboard: Dashboard, job: Job, write: Callable[[str], None]) -> Job:
    """Writes the log until the job ends.

    Returns:
        The job as it ended. The end of the log is missing, and a note says so, if it was on a node
        that is gone.

    Raises:
        ClusterError: if the cluster is out of reach for minutes; the job may continue.
    """
    return asyncio.run(_follow(dashboard, job, write))


async def _follow(dashboard: Dashboard, job: Job, write: Callable[[str], None]) -> Job:
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
                    f"lost sight of {job.id}, which may continue ({error}); look again with "
                    f"rl-service jobs logs {job.id} --follow"
                ) from error
        await asyncio.sleep(_RETRY_S)


def _rest_of_log(dashboard: Dashboard, job: Job, shown: int) -> str:
    try:
        return read_log(dashboard, job)[shown:]
    except ClusterError as error:
        return f"note: the end of the log cannot be read ({error})\n"


async def _tail(
    client: JobSubmissionClient, job_id: str, shown: int, write: Callable[[str], None]
) -> int:
    """Writes what comes after the first `shown` characters until the connection ends.

    Returns:
        How many characters are shown by then.
    """
    import aiohttp

    seen = 0
    with contextlib.suppress(RuntimeError, OSError, aiohttp.ClientError):
        # The next question finds out what has become of the cluster.
        async for text in client.tail_job_logs(job_id):
            new = text[max(0, shown - seen) :]
            seen += len(text)
            if new:
                write(new)
            shown = max(shown, seen)
    return shown
