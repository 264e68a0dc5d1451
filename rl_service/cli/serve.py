"""`rl-service serve`."""

from __future__ import annotations

import json
import re
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_service.cli.console import AllowModule, BaseModel, allow_modules
from rl_service.common.errors import SettingsError

if TYPE_CHECKING:  # the commands load what they need, so that help and errors come at once
    from rl_service.serving.server import Server
    from rl_service.serving.sources import PolicySource


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
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
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
    base_model: BaseModel = None,
    allow_module: AllowModule = None,
    runs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Output folder of trainings, which the page shows."),
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
    folder = None if base_model is None else str(Path(base_model).expanduser().absolute())
    log_folder = Path("runs", "serving", time.strftime("%Y%m%d-%H%M%S"))
    arguments = {
        "policies": policies,
        "registry": registry,
        "base_model": folder,
        "allow_modules": allow_module or [],
        "runs": None if runs is None else str(runs.expanduser().absolute()),
        "token_file": None if token_file is None else str(token_file.absolute()),
        "log_folder": str(log_folder.absolute()),
        "min_replicas": min_replicas,
        "max_replicas": max_replicas,
        "canary": _share(canary),
    }
    from rl_service.serving.security import Tokens, check_bind

    tokens = Tokens(token_file)
    check_bind(host, tokens)
    from rl_service.serving.sources import find_sources

    allow_modules(allow_module)
    examples = _examples(find_sources(policies, registry, folder))
    from rl_service.runtime.signals import StopRequest, interruptible
    from rl_service.serving.server import running_server

    with interruptible(), running_server(arguments, host, port) as server, StopRequest() as stop:
        _show(server, examples, tokens.required, log_folder)
        while not stop.requested:
            time.sleep(0.1)
        typer.echo("stopping: requests in progress are answered first", err=True)


def _examples(sources: list[PolicySource]) -> dict[str, Any]:
    """An observation for each policy; all are loaded, so that mistakes show before Ray starts."""
    from rl_service.policies.bundle import load_bundle
    from rl_service.serving.documentation import example_observation

    return {
        source.name: example_observation(
            load_bundle(source.fetch(source.wanted()), source.base_model).spec
        )
        for source in sources
    }


def _replicas(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9][0-9]{0,3})(?::([1-9][0-9]{0,3}))?", text, re.ASCII)
    least, most = (0, 0) if match is None else (int(match[1]), int(match[2] or match[1]))
    if not 0 < least <= most:
        raise SettingsError(
            f"--replicas {text} is not a number of replicas; give one, or the least and the most, "
            f"as in 1:4"
        )
    return least, most


def _share(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]+)?)%?", text, re.ASCII)
    percent = -1.0 if match is None else float(match[1])
    if not 0.0 <= percent <= 100.0:
        raise SettingsError(f"--canary {text} is not a share; give a percentage, as in 10%")
    return percent / 100.0


def _show(server: Server, examples: dict[str, Any], needs_token: bool, log_folder: Path) -> None:
    for note in server.notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"serving {', '.join(examples)} at {server.url} (routes: {server.url}/docs)")
    typer.echo(f"log: {log_folder}")
    name, observation = next(iter(examples.items()))
    token = ' -H "Authorization: Bearer $TOKEN"' if needs_token else ""
    typer.echo(
        f"try: curl -s {server.url}/v1/policies/{name}/act -H 'Content-Type: application/json'"
        f"{token} -d {shlex.quote(json.dumps({'observation': observation}))}"
    )
    typer.echo("Ctrl-C stops it")
