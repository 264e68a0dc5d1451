"""Every experiment of the results page, by one queue: docs/results/queue.yaml.

    python -m tests.learning.experiments run -j 4          trains what is not on record
    python -m tests.learning.experiments run --only 'table1-*' --minutes 9
    python -m tests.learning.experiments list              what is done, and estimates of time
    python -m tests.learning.experiments draw              writes docs/results/README.md again

It may be stopped at any moment: runs that are not finished stay in the work folder, and the next
call resumes them before it begins others. Trainings that find a Ray at `RAY_ADDRESS` share it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from fnmatch import fnmatch
from pathlib import Path
from threading import Event, Timer

import numpy as np
from rich.console import Console
from rich.table import Table

from rl_service.config.load import load_settings
from rl_service.runtime.machine import available_gpus
from rl_service.runtime.signals import interruptible
from tests.learning import queue, record, results, training
from tests.learning.queue import Queue, Row
from tests.learning.training import Job

WORK = training.ROOT / ".results"
QUIET = ("--set", "tracking.tensorboard=false", "--set", "tracking.ray_metrics=false")
MAX_KEPT_BYTES = 2**20
"""Of a policy that may ship with the package."""


def missing(rows: Queue, only: str, runs: Path, work: Path) -> list[Job]:
    """Runs that are not on record: begun ones, then those of first seeds, then short ones.

    Rows that need a GPU wait for a machine with one.
    """
    found, gpus = [], available_gpus()
    for name, row in rows.rows.items():
        needs = row.settings(row.seeds[0]).resources.num_gpus
        if not fnmatch(name, only) or row.taken_over or needs > gpus:
            continue
        for number, seed in enumerate(row.seeds):
            if record.read(row, seed, runs) is None:
                is_new = training.begun_run(work / name / str(seed)) is None
                job = Job(row.settings(seed).env.id, name, seed)
                found.append((is_new, number, row.minutes, job))
    return [job for *_, job in sorted(found, key=lambda entry: entry[:3])]


def run(row: Row, seed: int, runs: Path, work: Path, stop: Event) -> str:
    """Trains or resumes one run, and moves what is kept of it to the record."""
    folder = work / row.name / str(seed)
    begun = training.begun_run(folder)
    if begun is not None and not _is_of(row, seed, begun):
        shutil.rmtree(folder)
    each_iteration = row.episodes_per_point is not None
    kept = {"checkpoint_interval": 1, "keep_checkpoints": 100_000} if each_iteration else {}
    more = [part for k, v in kept.items() for part in ("--set", f"tracking.{k}={v}")]
    shared = os.environ.get("RAY_ADDRESS", "")
    arguments = (*row.arguments(seed), *QUIET, *more)
    result = training.train(folder, *arguments, ray_address=shared, stop=stop)
    done = record.make(row, seed, result)
    record.write(row, seed, done, runs)
    _keep_policy(Path(result["policy"]), work / "policies" / row.name / str(seed))
    shutil.rmtree(folder)
    return f"{np.mean(done['returns']):.2f} in {done['minutes']:.1f} minutes"


def _is_of(row: Row, seed: int, begun: Path) -> bool:
    """Whether a run has the settings that its row has today."""
    settings = load_settings(config=begun / "config.yaml").settings
    return queue.decisive(settings) == queue.decisive(row.settings(seed))


def _keep_policy(bundle: Path, place: Path) -> None:
    if sum(file.stat().st_size for file in bundle.iterdir()) < MAX_KEPT_BYTES:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(bundle, place)


def run_missing(rows: Queue, given: argparse.Namespace) -> None:
    """Trains what is missing, until the time is over."""
    stop, jobs = Event(), missing(rows, given.only, given.runs, given.work)
    timer = Timer(given.minutes * 60, stop.set)
    timer.daemon = True
    timer.start()

    def one(job: Job) -> str:
        return run(rows.rows[job.variant], job.seed, given.runs, given.work, stop)

    try:
        with interruptible():
            training.side_by_side(jobs, one, given.jobs, stop)
    except KeyboardInterrupt:
        sys.exit("stopped; the same command continues")
    finally:
        timer.cancel()


def listing(rows: Queue, only: str, runs: Path) -> Table:
    """What is done, and how long the rest takes on one core."""
    table = Table("row", "done", "GPUs", "env steps", "minutes", "to go")
    total = 0.0
    for name, row in rows.rows.items():
        if not fnmatch(name, only):
            continue
        settings, done = row.settings(row.seeds[0]), record.read_all(row, runs)
        found = [one["minutes"] for one in done.values()]
        each = float(np.mean(found)) if found else row.minutes
        left = 0.0 if row.taken_over else each * (len(row.seeds) - len(done))
        total += left
        cells = [name, f"{len(done)} of {len(row.seeds)}", str(settings.resources.num_gpus)]
        cells += [f"{settings.total_env_steps:,}", f"{each:.1f}", f"{left:.0f}"]
        table.add_row(*cells)
    table.add_row("all", "", "", "", "", f"{total:.0f}")
    return table


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("what", choices=("run", "list", "draw"))
    made.add_argument("-j", "--jobs", type=int, default=1, help="runs side by side")
    made.add_argument("--only", default="*", metavar="PATTERN", help="rows by name: 'table1-*'")
    made.add_argument("--minutes", type=float, default=7 * 24 * 60, help="then save and stop")
    made.add_argument("--queue", type=Path, default=queue.QUEUE, help="the experiments")
    made.add_argument("--runs", type=Path, default=record.RUNS, help="folder of the record")
    made.add_argument("--work", type=Path, default=WORK, help="folder of unfinished runs")
    return made


def main(arguments: list[str] | None = None) -> None:
    given = parser().parse_args(arguments)
    given.work = given.work.resolve()  # trainings start elsewhere
    rows = queue.read(given.queue)
    if given.what == "list":
        Console().print(listing(rows, given.only, given.runs))
    elif given.what == "draw":
        results.draw(rows, results.read(rows, given.runs))
    else:
        run_missing(rows, given)


if __name__ == "__main__":
    main()
