"""`rl-service doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def doctor(
    output_dir: Annotated[
        Path, typer.Option("--output-dir", "-o", help="Folder that runs would write to.")
    ] = Path(),
) -> None:
    """Say what is installed, what is missing, and how to mend it; status 1 if runs cannot work."""
    from rich.console import Console
    from rich.text import Text

    from rl_service.diagnosis import diagnose

    colours = {"ok": "green", "note": "yellow", "problem": "bold red"}
    console = Console()
    num_problems = 0
    for finding in diagnose(output_dir):
        num_problems += finding.status == "problem"
        line = Text.assemble(
            (f"{finding.status:8}", colours[finding.status]), f"{finding.subject:21}"
        )
        console.print(line.append(finding.detail), soft_wrap=True)
        if finding.remedy:
            console.print(Text(f"{'':29}→ {finding.remedy}"), soft_wrap=True)
    if num_problems:
        console.print(f"{num_problems} problem(s): mend what → says")
        raise typer.Exit(1)
    console.print("runs work here")
