"""The record of the benchmarks: raw numbers as JSON, and the tables made from them.

A benchmark that runs again replaces its own entry; the others stay.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.machine import sentence
from tests.benchmarks.tables import Table

RESULTS = Path(__file__).parents[2] / "docs" / "results"
Raw = dict[str, Any]
Tables = Callable[[Raw], list[Table]]


class Record(NamedTuple):
    """Two files of one folder: `<name>.json` and `<name>-tables.md`."""

    folder: Path
    name: str
    command: str
    """What writes them."""
    title: str = "Speed"
    """Of the page."""

    @property
    def raw_path(self) -> Path:
        return self.folder / f"{self.name}.json"

    def add(
        self, benchmark: str, raw: Raw, machine: Raw, seconds: float, tables: Mapping[str, Tables]
    ) -> None:
        """Replaces one benchmark's numbers and writes both files again.

        Args:
            benchmark: its name.
            raw: what it measured.
            machine: see `machine.describe`.
            seconds: that it took.
            tables: by benchmark, in the order of the page.
        """
        entries = self._read()
        entries[benchmark] = {
            "machine": machine,
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 1),
            "raw": raw,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        _write(self.raw_path, json.dumps(entries, indent=1) + "\n")
        _write(self.page_path, self.page(tables))

    @property
    def page_path(self) -> Path:
        return self.folder / f"{self.name}-tables.md"

    def _read(self) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        if self.raw_path.exists():
            entries = json.loads(self.raw_path.read_text(encoding="utf-8"))
        return entries

    def page(self, tables: Mapping[str, Tables]) -> str:
        """The tables of all that is recorded, in Markdown.

        Args:
            tables: by benchmark, in the order of the page.
        """
        entries = self._read()
        parts = [
            f"# {self.title}: tables\n",
            f"Written by `{self.command}`; raw numbers of every repeat in "
            f"[{self.name}.json]({self.name}.json). Ratios are taken within one repeat; each "
            f"shows the median, then the least and the greatest.\n",
        ]
        for benchmark, make_tables in tables.items():
            if benchmark in entries:
                entry = entries[benchmark]
                parts += [table.markdown() for table in make_tables(entry["raw"])]
                parts.append(f"<sub>{sentence(entry['machine'])}; {entry['measured_at']}</sub>\n")
        return "\n".join(parts)


def _write(path: Path, text: str) -> None:
    """Beside, then renamed into place."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
