"""`rl-service submit` and `rl-service jobs`."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from rl_service.cli.console import AsJson, command_group, duration, print_facts, print_table

if TYPE_CHECKING:  # the commands load what they need, so that help and errors come at once
    from rl_service.cluster.dashboard import Connection
    from rl_service.cluster.jobs import Job

jobs = command_group("jobs", "Look at the jobs of a Ray cluster, read their logs, stop them.")

_Address = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Dashboard of a Ray cluster; else $RAY_API_SERVER_ADDRESS or $RAY_ADDRESS, else the "
        "cluster of `rl-service cluster up`.",
    ),
]
_JobId = Annotated[str, typer.Argument(metavar="JOB", help="Its id, or the beginning of it.")]
_RESUMED = {"train": "run", "tune": "experiment"}
"""What the `--resume` of a command takes."""


def submit(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A settings file (with a search_space it is tuned, else trained), a shipped one's "
            "name, or train, tune, evaluate or compare.",
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARGS",
            help="Arguments of that command; a flag that submit has too goes after --.",
        ),
    ] = None,
    address: _Address = None,
    name: Annotated[
        str | None, typer.Option(help="First part of the job's id; else from TARGET.")
    ] = None,
    output_dir: Annotated[
        str | None,
        typer.Option(
            "--output-dir",
            "-o",
            help="Folder of the cluster that the job runs in, for runs/ and checkpoints/; else "
            "this folder, if the cluster is on this machine.",
        ),
    ] = None,
    cpus: Annotated[float | None, typer.Option(help="CPUs of the command's own process.")] = None,
    gpus: Annotated[
        float | None, typer.Option(help="GPUs of the command's own process, the learner.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show the log until the job ends; Ctrl-C detaches.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Send this folder and a command to a Ray cluster; the job outlives this command.

    With --follow the exit status is 0 if the job succeeds and 1 if not.
    """
    from rl_service.cluster.dashboard import find_cluster
    from rl_service.cluster.submit import Resources
    from rl_service.cluster.submit import submit as send

    connection = find_cluster(address)
    submitted = send(
        connection,
        target,
        arguments or [],
        name=name,
        output_dir=output_dir,
        resources=Resources(cpus, gpus),
    )
    for note in submitted.notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"submitted {submitted.id}")
    if follow:
        _follow_to_end(connection, submitted.id, as_json=as_json)
        return
    typer.echo(f"follow: rl-service jobs logs {submitted.id} --follow{connection.flag}")
    typer.echo(f"stop:   rl-service jobs stop {submitted.id}{connection.flag}")
    if as_json:
        typer.echo(json.dumps({"job": submitted.id, "address": connection.dashboard.url}))


@jobs.command("list")
def list_jobs(address: _Address = None, as_json: AsJson = False) -> None:
    """Show all jobs, the newest first."""
    from rl_service.cluster.dashboard import find_cluster
    from rl_service.cluster.jobs import list_jobs as jobs_of

    dashboard = find_cluster(address).dashboard
    found = jobs_of(dashboard)
    if found:
        print_table(
            ("job", "status", "started", "duration", "command"),
            [(job.id, _state(job), _clock(job), _duration(job), job.command) for job in found],
            right=("duration",),
            whole=("job", "started"),
        )
    typer.echo(f"cluster: {dashboard.url}" + ("" if found else " (no jobs yet)"))
    if as_json:
        typer.echo(json.dumps({"address": dashboard.url, "jobs": [job._asdict() for job in found]}))


@jobs.command("status")
def show_status(job: _JobId, address: _Address = None, as_json: AsJson = False) -> None:
    """Show one job."""
    from rl_service.cluster.dashboard import find_cluster
    from rl_service.cluster.jobs import find_job

    found = find_job(find_cluster(address).dashboard, job)
    print_facts(
        {
            "job": found.id,
            "status": _state(found),
            "started": _clock(found),
            "duration": _duration(found),
            "command": found.command,
            "git commit": found.git_commit,
            "exit code": None if found.exit_code is None else str(found.exit_code),
            "message": found.message[:500] or None,
        }
    )
    if as_json:
        typer.echo(json.dumps(found._asdict()))


@jobs.command("logs")
def show_logs(
    job: _JobId,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show the log until the job ends; Ctrl-C detaches.")
    ] = False,
    address: _Address = None,
) -> None:
    """Show what a job has printed; with --follow the exit status is the job's, 0 or 1."""
    from rl_service.cluster.dashboard import find_cluster
    from rl_service.cluster.jobs import find_job, read_log

    connection = find_cluster(address)
    found = find_job(connection.dashboard, job)
    if follow:
        _follow_to_end(connection, found.id, as_json=False)
    else:
        typer.echo(read_log(connection.dashboard, found), nl=False)


@jobs.command("stop")
def stop_job(job: _JobId, address: _Address = None, as_json: AsJson = False) -> None:
    """Stop a job; a training ends its iteration and saves first. Status 1 if it cannot yet."""
    from rl_service.cluster.dashboard import find_cluster
    from rl_service.cluster.jobs import find_job
    from rl_service.cluster.jobs import stop_job as stop
    from rl_service.runtime.signals import interruptible

    connection = find_cluster(address)
    found = find_job(connection.dashboard, job)
    with interruptible():
        ended = stop(connection.dashboard, found, lambda line: typer.echo(line, err=True))
    if ended.has_ended:
        ended_now = "had already ended" if found.has_ended else "ended"
        typer.echo(f"{ended.id} {ended_now}: {_state(ended)}")
    else:
        typer.echo(
            f"{ended.id} is still pending: it waits for its CPUs and GPUs, and stops when it has "
            f"them; Ray gives it up 15 minutes after it was submitted"
        )
    if ended.has_ended and not found.has_ended and ended.verb in _RESUMED:
        what, flag = _RESUMED[ended.verb], connection.flag
        typer.echo(
            f"its log names its {what}: rl-service jobs logs {ended.id}{flag}; continue with "
            f"rl-service submit{flag} {ended.verb} --resume {what.upper()}"
        )
    if as_json:
        typer.echo(json.dumps(ended._asdict()))
    if not ended.has_ended:
        raise typer.Exit(1)


def _follow_to_end(connection: Connection, job_id: str, *, as_json: bool) -> None:
    """Shows a job's log until it ends; exits with 1 if it did not succeed, 130 if detached."""
    from rl_service.cluster.jobs import find_job, follow_log
    from rl_service.runtime.signals import interruptible

    found = find_job(connection.dashboard, job_id)
    try:
        with interruptible():
            ended = follow_log(connection.dashboard, found, lambda text: typer.echo(text, nl=False))
    except KeyboardInterrupt as error:
        typer.echo(
            f"detached; {job_id} continues: rl-service jobs logs {job_id} --follow"
            f"{connection.flag}, rl-service jobs stop {job_id}{connection.flag}",
            err=True,
        )
        raise typer.Exit(130) from error
    typer.echo(f"{job_id} ended: {_state(ended)}")
    if as_json:
        typer.echo(json.dumps({"address": connection.dashboard.url, **ended._asdict()}))
    if ended.status != "SUCCEEDED":
        raise typer.Exit(1)


def _state(job: Job) -> str:
    return job.status.lower()


def _clock(job: Job) -> str:
    """In the time of this machine."""
    if job.started_at_s is None:
        return "–"
    return time.strftime("%m-%d %H:%M:%S", time.localtime(job.started_at_s))


def _duration(job: Job) -> str:
    if job.started_at_s is None:
        return "–"
    return duration((job.ended_at_s or time.time()) - job.started_at_s)
