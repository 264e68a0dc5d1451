"""`rl-service compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rl_service.cli.console import AsJson, print_table, short_path

_SHOWN = ("group", "seeds", "env steps", "final return", "best evaluation")
"""What fits on a narrow screen."""


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="A run's folder, its id under runs/, or LABEL=RUN. Runs of one label are one "
            "line; without labels those that differ only in seed.",
        ),
    ],
    output_dir: Annotated[
        Path,
        typer.Option(
            "--output-dir",
            "-o",
            metavar="DIR",
            help="Folder for the figures and tables; an earlier comparison there is replaced.",
        ),
    ],
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="A key of progress.jsonl to draw; repeatable; else returns, losses and speed.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw runs beside each other, mean and min–max band over seeds, and tabulate their returns."""
    from rl_service.tuning.comparison import HEADINGS, table_cells, table_row
    from rl_service.tuning.comparison import compare as write_comparison

    comparison = write_comparison(runs, output_dir, metrics=metrics or [])
    for note in comparison.notes:
        typer.echo(f"note: {note}", err=True)
    cells = [dict(zip(HEADINGS, table_cells(group), strict=True)) for group in comparison.groups]
    rows = [[row[heading] for heading in _SHOWN] for row in cells]
    print_table(_SHOWN, rows, right=_SHOWN[1:], whole=_SHOWN[2:])
    typer.echo(f"figures and tables: {short_path(comparison.folder)}")
    if as_json:
        groups = [
            {
                **table_row(group),
                "runs": [str(run.path) for run in group.runs],
                "seeds": group.seeds,
            }
            for group in comparison.groups
        ]
        summary = {
            "output_dir": str(comparison.folder),
            "groups": groups,
            "figures": [str(figure) for figure in comparison.figures],
        }
        typer.echo(json.dumps(summary))
