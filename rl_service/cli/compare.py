"""`rl-service compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:  # the commands load what they need, so that help and errors come at once
    from rl_service.tuning.comparison import Comparison

_SHOWN = ("seeds", "env steps", "final return", "best evaluation")  # what fits on a narrow screen


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
            help="A key of progress.jsonl to draw, again for more; else returns, losses and speed.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on the last line.")
    ] = False,
) -> None:
    """Draw runs beside each other, mean and min–max band over seeds, and tabulate their returns."""
    from rl_service.tuning.comparison import compare as write_comparison

    comparison = write_comparison(runs, output_dir, metrics=metrics or [])
    for note in comparison.notes:
        typer.echo(f"note: {note}", err=True)
    _print_table(comparison)
    if as_json:
        typer.echo(json.dumps(_summary(comparison)))


def _print_table(comparison: Comparison) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from rl_service.cli.figures import short_path
    from rl_service.tuning.comparison import HEADINGS, table_cells

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("group", overflow="fold")
    for heading in _SHOWN:
        table.add_column(heading, justify="right", no_wrap=heading != "seeds")
    for group in comparison.groups:
        cells = dict(zip(HEADINGS, table_cells(group), strict=True))
        table.add_row(*(Text(cells[heading]) for heading in ("group", *_SHOWN)))
    Console().print(table)
    typer.echo(f"figures and tables: {short_path(comparison.folder)}")


def _summary(comparison: Comparison) -> dict[str, Any]:
    from rl_service.tuning.comparison import table_row

    groups = [
        {**table_row(group), "runs": [str(run.path) for run in group.runs], "seeds": group.seeds}
        for group in comparison.groups
    ]
    return {
        "output_dir": str(comparison.folder),
        "groups": groups,
        "figures": [str(figure) for figure in comparison.figures],
    }
