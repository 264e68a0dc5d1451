"""Tables on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as RichTable

from tests.benchmarks.tables import Table


def show(console: Console, table: Table) -> None:
    """Prints a table with its note below."""
    drawn = RichTable(title=table.title, title_justify="left")
    for number, name in enumerate(table.columns):
        drawn.add_column(name, justify="right" if number else "left")
    for row in table.rows:
        drawn.add_row(*row)
    console.print(drawn)
    console.print(table.note, "\n", sep="\n", style="dim", highlight=False)
