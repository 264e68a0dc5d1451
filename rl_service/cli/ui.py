"""`rl-service ui`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from rl_service.cli.console import AllowModule, allow_modules
from rl_service.common.errors import SettingsError


def ui(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Output folder of trainings, or its folder runs."),
    ] = Path(),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    allow_module: AllowModule = None,
) -> None:
    """Look at runs, experiments and policies of this machine in a browser, until Ctrl-C."""
    folder = folder.expanduser().absolute()
    if not folder.is_dir():
        raise SettingsError(f"{folder} is not a folder; name the one that holds runs, or create it")
    from rl_service.runtime.machine import LOOPBACK, usable_port
    from rl_service.runtime.signals import StopRequest, interruptible
    from rl_service.serving.local import running_page
    from rl_service.training.run import RUNS_FOLDER

    if folder.name == RUNS_FOLDER and not (folder / RUNS_FOLDER).is_dir():
        folder = folder.parent
    port = usable_port("--port", port, LOOPBACK)
    allow_modules(allow_module)
    with (
        interruptible(),
        running_page(folder, port, allow_module or ()) as url,
        StopRequest() as stop,
    ):
        typer.echo(f"runs of {folder} at {url}")
        typer.echo("Ctrl-C stops it")
        while not stop.requested:
            time.sleep(0.1)
