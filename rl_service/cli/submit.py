"""`rl-service submit`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rl_service.cli.console import Address
from rl_service.cli.jobs import follow_to_end


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
        typer.Argument(metavar="ARGS", help="Of that command; after -- anything goes."),
    ] = None,
    address: Address = None,
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
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on the last line.")
    ] = False,
) -> None:
    """Send this folder and a command to a Ray cluster; the job outlives this command.

    With --follow the exit status is 0 if the job succeeds and 1 if not.
    """
    from rl_service.cluster.address import find_cluster
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
    if not follow:
        typer.echo(f"follow: rl-service jobs logs {submitted.id} --follow{connection.flag}")
        typer.echo(f"stop:   rl-service jobs stop {submitted.id}{connection.flag}")
        if as_json:
            typer.echo(json.dumps({"job": submitted.id, "address": connection.dashboard.url}))
        return
    follow_to_end(connection, submitted.id, as_json=as_json)
