"""`python -m tests.benchmarks.gpu [PART] [--quick] [-o FOLDER]`: measures, shows, records."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from tests.benchmarks import machine
from tests.benchmarks.gpu import acting, language_model, peaks
from tests.benchmarks.gpu.cases import VARIANTS, Case
from tests.benchmarks.gpu.report import TABLES
from tests.benchmarks.record import RESULTS, Raw, Record
from tests.benchmarks.repeats import interleaved

NETS = ("mlp", "gpt2")
BATCHES = (128, 1024, 8192, 65536)
REPEATS, CALLS = 5, 50


def main() -> None:
    """Measures on the first GPU, or says that there is none."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu", description=__doc__)
    parser.add_argument("part", nargs="?", choices=TABLES, help="what to measure [all]")
    parser.add_argument("--quick", action="store_true", help="one batch; recorded only with -o")
    parser.add_argument("-o", "--output", type=Path, help="folder of the record [docs/results]")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(
            "bench-gpu: torch sees no CUDA device; run it on a machine with a GPU and a CUDA "
            "build of torch"
        )
    folder = arguments.output or (None if arguments.quick else RESULTS)
    for part in [arguments.part] if arguments.part else list(TABLES):
        described, started = machine.describe(), time.perf_counter()
        described["gpu"] = torch.cuda.get_device_name()
        raw = MEASURES[part](arguments.quick)
        for table in TABLES[part](raw):
            sys.stdout.write(table.markdown() + "\n")
        if folder:
            record = Record(folder, "speed-gpu", "make bench-gpu")
            record.add(part, raw, described, time.perf_counter() - started, TABLES)


def measure_nets(quick: bool) -> Raw:
    """Peaks of the device; seconds of a pass and what it needs, by net and batch."""
    candidates: dict[str, Callable[[], float]] = {
        "float32": partial(peaks.matmul_flop_per_s, torch.float32),
        "bf16": partial(peaks.matmul_flop_per_s, torch.bfloat16),
        "copy": peaks.copy_bytes_per_s,
    }
    batches = BATCHES[:1] if quick else BATCHES
    return {
        "peaks": interleaved(candidates, REPEATS, warmups=1),
        "language_model": language_model.measure(quick),
        "nets": {net: {str(n): _measure_case(net, n, quick) for n in batches} for net in NETS},
    }


def _measure_case(net: str, num_values: int, quick: bool) -> Raw:
    torch.compiler.reset()  # shapes of an earlier case would count as recompilations
    case = Case(net, num_values)
    candidates = {
        name: partial(peaks.seconds_per_call, case.step(variant), 5 if quick else CALLS)
        for name, variant in VARIANTS.items()
    }
    sys.stderr.write(f"{net}, {num_values} values …\n")
    return {
        "flop": case.need.flop,
        "bytes": {"float32": case.need.bytes(4), "bf16": case.need.bytes(2)},
        "seconds": interleaved(candidates, REPEATS, warmups=1),
    }


MEASURES = {"nets": measure_nets, "acting": acting.measure}

if __name__ == "__main__":
    main()
