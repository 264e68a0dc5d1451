"""`python -m tests.benchmarks [NAME ...] [--quick] [-o FOLDER]`: measures, shows, records."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console

from tests.benchmarks import machine
from tests.benchmarks.catalog import BENCHMARKS, TABLES
from tests.benchmarks.child import Child, ChildFailed
from tests.benchmarks.display import show
from tests.benchmarks.record import RESULTS, Record


def main() -> int:
    """Runs what is asked for; 1 if any benchmark failed."""
    arguments = _parse()
    console = Console()
    if arguments.quick:
        console.print("Quick: tiny sizes, whatever the notes say; the figures mean nothing.\n")
    folder = arguments.output or (None if arguments.quick else RESULTS)
    record = Record(folder, "speed", "make bench") if folder else None
    failed = [name for name in arguments.names if not run(name, arguments.quick, record, console)]
    return 1 if failed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="tiny sizes; recorded only with -o")
    parser.add_argument("-o", "--output", type=Path, help="folder of the record [docs/results]")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    arguments.names = arguments.names or [n for n, each in BENCHMARKS.items() if each.by_default]
    return arguments


def run(name: str, quick: bool, record: Record | None, console: Console) -> bool:
    """Measures, shows and records one benchmark; false if it failed."""
    before, started = machine.describe(), time.perf_counter()
    console.print(f"[bold]{name}[/bold]: measuring (load {before['load_average']:.1f}) …")
    try:
        raw = BENCHMARKS[name].measure(Child, quick)
    except ChildFailed as error:
        console.print(f"{name} failed. {error}", markup=False)
        return False
    seconds = time.perf_counter() - started
    for table in TABLES[name](raw):
        show(console, table)
    console.print(f"{name}: {seconds:.0f} s\n")
    if record is not None:
        record.add(name, raw, before, seconds, TABLES)
    return True


if __name__ == "__main__":
    sys.exit(main())
