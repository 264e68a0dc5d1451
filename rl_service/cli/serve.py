"""`rl-service serve`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_service.errors import SettingsError

if TYPE_CHECKING:  # the commands load what they need, so that help and errors come at once
    from rl_service.serving.server import Server


def serve(
    policies: Annotated[
        list[str],
        typer.Argument(
            metavar="POLICY...",
            help="A bundle folder, name, name@alias, name:version or zoo:NAME; NAME=POLICY serves "
            "it under another name.",
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to bind to.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with NAME: TOKEN lines, read again when it changes; without it, "
            "RL_SERVICE_TOKENS."
        ),
    ] = None,
    registry: Annotated[
        str | None, typer.Option(metavar="ROOT", help="Folder or URI of the policy registry.")
    ] = None,
    replicas: Annotated[
        str, typer.Option(metavar="N|MIN:MAX", help="Processes that answer.")
    ] = "1",
    canary: Annotated[
        str,
        typer.Option(
            metavar="PERCENT", help="Share of the requests that a new version takes on trial."
        ),
    ] = "0%",
) -> None:
    """Serve policies over HTTP until Ctrl-C."""
    min_replicas, max_replicas = _replicas(replicas)
    arguments = {
        "policies": policies,
        "registry": registry,
        "token_file": None if token_file is None else str(token_file.absolute()),
        "min_replicas": min_replicas,
        "max_replicas": max_replicas,
        "canary": _share(canary),
    }
    needs_token = _check(arguments, host, token_file)
    from rl_service.runs.signals import StopRequest
    from rl_service.serving.server import running_server

    with StopRequest() as stop:
        with running_server(arguments, host, port) as server:
            _show(server, needs_token)
            while not stop.requested:
                stop.wait()
            typer.echo("stopping: requests under way are answered first", err=True)


def _check(arguments: dict[str, Any], host: str, token_file: Path | None) -> bool:
    """Reads all that the replicas will read, so that mistakes show before anything starts.

    Returns:
        Whether requests need a token.
    """
    from rl_service.policies.bundle import load_bundle
    from rl_service.serving.security import Tokens, check_bind
    from rl_service.serving.sources import find_sources

    tokens = Tokens(token_file)
    check_bind(host, tokens)
    for source in find_sources(arguments["policies"], arguments["registry"]):
        load_bundle(source.fetch(source.wanted()))
    return tokens.required


def _replicas(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9][0-9]{0,3})(?::([1-9][0-9]{0,3}))?", text, re.ASCII)
    least, most = (0, 0) if match is None else (int(match[1]), int(match[2] or match[1]))
    if not 0 < least <= most:
        raise SettingsError(
            f"--replicas {text} is no number of replicas; give one, or the least and the most, as "
            f"in 1:4"
        )
    return least, most


def _share(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]+)?)%?", text, re.ASCII)
    percent = -1.0 if match is None else float(match[1])
    if not 0.0 <= percent <= 100.0:
        raise SettingsError(f"--canary {text} is no share; give a percentage, as in 10%")
    return percent / 100.0


def _show(server: Server, needs_token: bool) -> None:
    import json

    import httpx

    for note in server.notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"serving at {server.url}  (routes: {server.url}/docs)")
    typer.echo(f"log: {server.log_folder}")
    typer.echo("try:")
    for line in server.curl_lines(needs_token):
        typer.echo(f"  {line}")
    typer.echo("Ctrl-C stops it")
