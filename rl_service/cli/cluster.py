"""`rl-service cluster`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_service.cli.console import AsJson, command_group, print_table, reported_if_interrupted

if TYPE_CHECKING:  # the commands load what they need, so that help and errors come at once
    from rl_service.cluster.state import LocalCluster

cluster = command_group(
    "cluster", "Start a Ray cluster of several nodes on this machine, look at it, end it."
)

_Port = Annotated[
    int, typer.Option(min=0, max=65535, help="Port of Ray's own processes; 0 takes a free one.")
]
_DashboardPort = Annotated[
    int, typer.Option(min=0, max=65535, help="Port of dashboard and jobs; 0 takes a free one.")
]


@cluster.command("up")
def start(
    nodes: Annotated[int, typer.Option(help="Nodes: a head, and workers.")] = 2,
    cpus_per_node: Annotated[
        int | None, typer.Option(help="Logical CPUs of each; else the machine's, shared out.")
    ] = None,
    port: _Port = 6379,
    dashboard_port: _DashboardPort = 8265,
    as_json: AsJson = False,
) -> None:
    """Start a cluster; submit, jobs and status find it by themselves."""
    started = _start(
        num_nodes=nodes, cpus_per_node=cpus_per_node, port=port, dashboard_port=dashboard_port
    )
    cpus = started.nodes[0].num_cpus
    typer.echo(f"{len(started.nodes)} node(s) with {cpus} CPU(s) each are up")
    _print_started(started, as_json)


@cluster.command("autoscale")
def start_autoscaling(
    max_nodes: Annotated[int, typer.Option(help="Nodes at most: the head, and workers.")] = 3,
    cpus_per_node: Annotated[int, typer.Option(help="Logical CPUs of each.")] = 1,
    idle_timeout_s: Annotated[
        float, typer.Option(help="Seconds without work after which a worker node ends.")
    ] = 30.0,
    port: _Port = 6379,
    dashboard_port: _DashboardPort = 8265,
    as_json: AsJson = False,
) -> None:
    """Start a head whose worker nodes start when work waits for CPUs, and end when idle."""
    started = _start(
        num_nodes=max_nodes,
        cpus_per_node=cpus_per_node,
        port=port,
        dashboard_port=dashboard_port,
        idle_timeout_s=idle_timeout_s,
    )
    typer.echo(
        f"a head with {cpus_per_node} CPU(s) is up; up to {max_nodes - 1} worker node(s) start "
        f"when work waits, and end after {idle_timeout_s:g} idle s"
    )
    _print_started(started, as_json)


def _start(**wanted: Any) -> LocalCluster:
    """Starts a cluster; a signal ends what had started, and says so."""
    from rl_service.cluster.local import start_cluster

    with reported_if_interrupted("what had started has ended again"):
        return start_cluster(
            **wanted, on_message=lambda note: typer.echo(f"note: {note}", err=True)
        )


def _print_started(started: LocalCluster, as_json: bool) -> None:
    from rl_service.cluster.state import token_path

    typer.echo(f"dashboard and jobs: {started.dashboard_url}   Ray: {started.address}")
    typer.echo(
        f"for programs of your own: export RAY_ADDRESS={started.address} RAY_AUTH_MODE=token "
        f"RAY_AUTH_TOKEN_PATH={token_path()}"
    )
    typer.echo("try: rl-service submit --follow train -m mlp -e CartPole-v1 -ne 5")
    if as_json:
        typer.echo(json.dumps(started.model_dump()))


@cluster.command("status")
def show_status(as_json: AsJson = False) -> None:
    """Show nodes, resources in use, jobs and addresses; status 1 if no cluster is up."""
    from rl_service.cluster.local import cluster_status

    status = cluster_status()
    if status is None:
        typer.echo("no local cluster is up; start one with rl-service cluster up")
        if as_json:
            typer.echo("null")
        raise typer.Exit(1)
    headings = ("node", "state", "CPUs in use", "GPUs in use", "process")
    rows = [
        (
            node.name,
            "alive" if node.alive else "starting" if node.node_id is None else "dead",
            f"{node.cpus_used:g} of {node.cpus:g}",
            f"{node.gpus_used:g} of {node.gpus:g}",
            str(node.pid),
        )
        for node in status.nodes
    ]
    print_table(headings, rows, right=headings[2:])
    jobs = ", ".join(f"{count} {name.lower()}" for name, count in sorted(status.jobs.items()))
    typer.echo(f"jobs: {jobs or 'none yet'}")
    typer.echo(f"dashboard and jobs: {status.dashboard_url}   Ray: {status.address}")
    typer.echo(f"up since {status.started_at}; logs are in {status.folder}")
    if as_json:
        nodes = [node._asdict() for node in status.nodes]
        typer.echo(json.dumps({**status._asdict(), "nodes": nodes}))


@cluster.command("down")
def end() -> None:
    """End the cluster and all that runs on it; running jobs may save their state first."""
    from rl_service.cluster.jobs import stop_all_local
    from rl_service.cluster.local import end_cluster

    with reported_if_interrupted("the cluster is still up; jobs that were asked to stop do so"):
        stopped = stop_all_local(lambda message: typer.echo(message, err=True))
        ended = end_cluster()
    if ended is None:
        typer.echo("no local cluster is up")
        return
    jobs = f"; stopped {stopped} job(s)" if stopped else ""
    typer.echo(f"ended {len(ended.nodes)} node(s){jobs}")
