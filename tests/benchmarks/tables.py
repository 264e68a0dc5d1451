"""A table, and how it reads in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Rows of texts; the first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""
    """What was measured, and how to read it."""

    def markdown(self) -> str:
        """Heading, note and table."""
        rule = "|".join(["---", *("---:" for _ in self.columns[1:])])
        lines = [f"## {self.title}\n"]
        if self.note:
            lines.append(f"{self.note}\n")
        lines += [_line(self.columns), f"|{rule}|", *map(_line, self.rows)]
        return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
