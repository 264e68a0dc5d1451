"""`python -m tests.benchmarks.simulation [--quick] [-o FOLDER]`: measures, simulates, records."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console

from tests.benchmarks import machine
from tests.benchmarks.child import Child, ChildFailed
from tests.benchmarks.display import show
from tests.benchmarks.record import RESULTS, Raw, Record
from tests.benchmarks.simulation.calibration import measure
from tests.benchmarks.simulation.figure import draw
from tests.benchmarks.simulation.pipeline import Cluster
from tests.benchmarks.simulation.predictions import predict
from tests.benchmarks.simulation.report import tables


def main() -> int:
    """Feeds the model with this machine's times; 1 if they could not be measured."""
    arguments = _parse()
    console = Console()
    described, started = machine.describe(), time.perf_counter()
    console.print(f"measuring (load {described['load_average']:.1f}) …")
    try:
        raw = measure(Child, arguments.quick)
    except ChildFailed as error:
        console.print(f"The measurement failed. {error}", markup=False)
        return 1
    raw |= predict(raw, Cluster(arguments.node_cores))
    seconds = time.perf_counter() - started
    for table in tables(raw):
        show(console, table)
    folder = arguments.output or (None if arguments.quick else RESULTS)
    if folder:
        write(folder, raw, described, seconds)
    return 0


def write(folder: Path, raw: Raw, described: Raw, seconds: float) -> None:
    """Writes `scaling.json`, `scaling-tables.md` and `scaling.png`."""
    record = Record(folder, "scaling", "make bench-scaling", title="Scaling")
    record.add("simulation", raw, described, seconds, {"simulation": tables})
    draw(raw, folder / "scaling.png")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.simulation", description=__doc__
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes; recorded only with -o")
    parser.add_argument("-o", "--output", type=Path, help="folder of the record [docs/results]")
    parser.add_argument(
        "--node-cores", type=int, default=16, help="cores of each node that is simulated [16]"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
