"""`rl-service jobs`."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from rl_service.cli.console import Address

if TYPE_CHECKING:  # the commands load what they need, so that help and errors come at once
    from rl_service.cluster.address import Connection
    from rl_service.cluster.jobs import Job

jobs = typer.Typer(
    name="jobs",
    help="Look at the jobs of a Ray cluster, read their logs, stop them.",
    rich_markup_mode=None,
)

_JobId = Annotated[str, typer.Argument(metavar="JOB", help="Its id, or the beginning of it.")]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on the last line.")]
_RESUMED = {"train": "run", "tune": "experiment"}
"""What a command goes on with."""


@jobs.callback(invoke_without_command=True)
def _show_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@jobs.command("list")
def list_jobs(address: Address = None, as_json: _Json = False) -> None:
    """Show all jobs, the newest first."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from rl_service.cluster.address import find_cluster
    from rl_service.cluster.jobs import list_jobs as jobs_of

    dashboard = find_cluster(address).dashboard
    found = jobs_of(dashboard)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("job", no_wrap=True)
    table.add_column("status")
    table.add_column("started", no_wrap=True)
    table.add_column("duration", justify="right")
    table.add_column("command")
    for job in found:
        table.add_row(job.id, _state(job), _clock(job), _duration(job), Text(job.command))
    if found:
        Console().print(table)
    typer.echo(f"cluster: {dashboard.url}" + ("" if found else " (no jobs yet)"))
    if as_json:
        typer.echo(json.dumps({"address": dashboard.url, "jobs": [job._asdict() for job in found]}))


@jobs.command("status")
def show_status(job: _JobId, address: Address = None, as_json: _Json = False) -> None:
    """Show one job."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from rl_service.cluster.address import find_cluster
    from rl_service.cluster.jobs import find_job

    found = find_job(find_cluster(address).dashboard, job)
    table = Table(box=box.SIMPLE, show_header=False)
    shown = {
        "job": found.id,
        "status": _state(found),
        "started": _clock(found),
        "duration": _duration(found),
        "command": found.command,
        "git commit": found.git_commit or "–",
        "exit code": "–" if found.exit_code is None else str(found.exit_code),
        "message": found.message[:500] or "–",
    }
    for key, value in shown.items():
        table.add_row(key, Text(value, overflow="fold"))
    Console().print(table)
    if as_json:
        typer.echo(json.dumps(found._asdict()))


@jobs.command("logs")
def show_logs(
    job: _JobId,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on until the job ends; Ctrl-C detaches.")
    ] = False,
    address: Address = None,
) -> None:
    """Show what a job has printed; with --follow the exit status is the job's, 0 or 1."""
    from rl_service.cluster.address import find_cluster
    from rl_service.cluster.jobs import find_job, read_log

    connection = find_cluster(address)
    found = find_job(connection.dashboard, job)
    if follow:
        follow_to_end(connection, found.id, as_json=False)
    else:
        typer.echo(read_log(connection.dashboard, found), nl=False)


@jobs.command("stop")
def stop_job(job: _JobId, address: Address = None, as_json: _Json = False) -> None:
    """Stop a job; a training ends its iteration and saves first. Status 1 if it cannot yet."""
    from rl_service.cluster.address import find_cluster
    from rl_service.cluster.jobs import find_job
    from rl_service.cluster.jobs import stop_job as stop
    from rl_service.runtime.signals import interruptible

    connection = find_cluster(address)
    found = find_job(connection.dashboard, job)
    with interruptible():
        ended = stop(connection.dashboard, found, lambda line: typer.echo(line, err=True))
    typer.echo(_how_it_stopped(found, ended))
    if ended.has_ended and not found.has_ended and ended.verb in _RESUMED:
        typer.echo(_how_to_go_on(ended, connection.flag))
    if as_json:
        typer.echo(json.dumps(ended._asdict()))
    if not ended.has_ended:
        raise typer.Exit(1)


def _how_it_stopped(before: Job, after: Job) -> str:
    if not after.has_ended:
        return (
            f"{after.id} is pending still: it waits for its CPUs and GPUs, and stops when it has "
            f"them; Ray gives it up 15 minutes after it was submitted"
        )
    return f"{after.id} {'had ended already' if before.has_ended else 'ended'}: {_state(after)}"


def _how_to_go_on(job: Job, flag: str) -> str:
    what = _RESUMED[job.verb or ""]
    return (
        f"its log names its {what}: rl-service jobs logs {job.id}{flag}; go on with rl-service "
        f"submit{flag} {job.verb} --resume {what.upper()}"
    )


def follow_to_end(connection: Connection, job_id: str, *, as_json: bool) -> None:
    """Shows a job's log until it ends; exits with 1 if it did not succeed, 130 if detached."""
    from rl_service.cluster.jobs import find_job, follow_log
    from rl_service.runtime.signals import interruptible

    found = find_job(connection.dashboard, job_id)
    try:
        with interruptible():
            ended = follow_log(connection.dashboard, found, lambda text: typer.echo(text, nl=False))
    except KeyboardInterrupt as error:
        typer.echo(
            f"detached; {job_id} goes on: rl-service jobs logs {job_id} --follow{connection.flag}, "
            f"rl-service jobs stop {job_id}{connection.flag}",
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
    from rl_service.cli.figures import duration

    if job.started_at_s is None:
        return "–"
    return duration((job.ended_at_s or time.time()) - job.started_at_s)
