"""Trainings as a user starts them: the command, in a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Lock
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from rl_service.common.errors import RLServiceError
from rl_service.common.files import write_atomic

ROOT = Path(__file__).parents[2]
Flat = dict[str, Any]
"""Settings by dotted key."""
Results = dict[str, dict[str, dict[str, Any]]]
"""Runs by environment, variant and seed."""
_POLL_S = 0.5
_INTERRUPTED = 130
"""Exit status of a training that was asked to stop, and has saved."""


def machine() -> str:
    """Cores and their name."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{len(names)} cores of {names[0]}"


class Job(NamedTuple):
    """A run of a comparison."""

    env: str
    variant: str
    seed: int


class StoppedError(Exception):
    """A training was asked to stop; it can be resumed."""


def begun_run(folder: Path) -> Path | None:
    """The run that a training into this folder has begun, if any."""
    config = next(folder.glob("runs/*/*/config.yaml"), None)
    return None if config is None else config.parent


def train(
    folder: Path, *arguments: str, ray_address: str = "", stop: Event | None = None
) -> dict[str, Any]:
    """Runs `rl-service train` into a folder, or resumes the run that lies there.

    Args:
        folder: of the run.
        arguments: of the command.
        ray_address: of a Ray to share; by default the command starts its own.
        stop: asks the training to save and end.

    Returns:
        The command's `--json` object.

    Raises:
        CalledProcessError: if it failed.
        StoppedError: if it was stopped before its end.
    """
    run = begun_run(folder)
    what = [*arguments, "-o", str(folder)] if run is None else ["--resume", str(run)]
    process = subprocess.Popen(
        [sys.executable, "-m", "rl_service.cli", "train", *what, "--json"],
        cwd=ROOT,
        env={**os.environ, "RAY_ADDRESS": ray_address},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches it once, through `stop`
    )
    out = _output(process, stop or Event())
    if process.returncode == _INTERRUPTED:
        raise StoppedError
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


def _output(process: subprocess.Popen[str], stop: Event) -> str:
    """What a process prints until it ends, which `stop` asks it to do, once."""
    asked = False
    while True:
        try:
            return process.communicate(timeout=_POLL_S)[0]
        except subprocess.TimeoutExpired:
            if stop.is_set() and not asked:
                process.send_signal(signal.SIGINT)
                asked = True


Measure = Callable[[dict[str, Any]], dict[str, Any]]
"""From the `--json` object of a run that is still in its folder to more entries of the record."""


def train_job(job: Job, flat: Flat, measure: Measure, stop: Event) -> dict[str, Any]:
    """One run in a process of its own: what it reached, and its evaluations on the way."""
    settings: dict[str, Any] = {"seed": job.seed, "env": {"id": job.env}}
    for dotted, value in flat.items():
        group, _, key = dotted.partition(".")
        settings.setdefault(group, {})[key] = value
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.yaml"
        file.write_text(json.dumps(settings), encoding="utf-8")  # which is YAML, too
        shared = os.environ.get("RAY_ADDRESS", "")
        arguments = ("--config", str(file))
        result = train(Path(folder), *arguments, ray_address=shared, stop=stop)
        text = (Path(result["run"]) / "progress.jsonl").read_text(encoding="utf-8")
        more = measure(result)
    rows = [json.loads(line) for line in text.splitlines()]
    scores = [row.get("evaluation/episode_return_mean") for row in rows]
    return {
        "return": round(result["episode_return_mean"], 2),
        "training_return": round(rows[-1]["episode_return_mean"], 2),
        "evaluations": [round(score, 1) for score in scores if score is not None],
        "machine": machine(),
        **more,
    }


def read(record: Path) -> Results:
    """The runs on record."""
    results: Results = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    return results


def fill(
    record: Path,
    jobs: list[Job],
    settings_of: Callable[[Job], Flat],
    parallel: int,
    measure: Measure = lambda _: {},
) -> Results:
    """Trains what is missing, so many at once, and records each run as it ends; 0 trains none."""
    results, lock, stop = read(record), Lock(), Event()

    def run(job: Job) -> str:
        found = train_job(job, settings_of(job), measure, stop)
        with lock:
            results.setdefault(job.env, {}).setdefault(job.variant, {})[str(job.seed)] = found
            write_atomic(record, json.dumps(results, indent=1) + "\n")
        return str(found["return"])

    if parallel:
        side_by_side(jobs, run, parallel, stop)
    return results


def side_by_side(jobs: list[Job], run: Callable[[Job], str], parallel: int, stop: Event) -> None:
    """Runs jobs in their order, so many at once, and prints what each returns.

    A job that fails is reported, and the others go on. An interruption sets `stop`.

    Args:
        jobs: what to run.
        run: from a job to a line about its result.
        parallel: at least 1.
        stop: ends the running jobs, and lets no further one begin.
    """
    console = Console()

    def reported(job: Job) -> None:
        if stop.is_set():
            return
        try:
            console.print(*job, run(job))
        except StoppedError:
            console.print(*job, "stopped")
        except subprocess.CalledProcessError as error:  # which has said why
            console.print(*job, f"failed with status {error.returncode}")
        except RLServiceError as error:
            console.print(*job, f"failed: {error}")

    with ThreadPoolExecutor(parallel) as pool:
        try:
            list(pool.map(reported, jobs))
        except BaseException:
            stop.set()
            raise


def write_between(page: Path, marks: tuple[str, str], text: str) -> None:
    """Puts a text between two marks of a page."""
    begin, end = marks
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(before + begin + text + end + after, encoding="utf-8")


def read_between(page: Path, marks: tuple[str, str]) -> str:
    """The text between them."""
    begin, end = marks
    return page.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0]


def parallel_runs(description: str | None) -> int:
    """`--parallel` of a comparison's command line."""
    parallel: int = parser(description).parse_args().parallel
    return parallel


def parser(description: str | None) -> argparse.ArgumentParser:
    """Of a comparison's command line."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--parallel", type=int, default=os.cpu_count(), help="runs side by side")
    return made


def scores(results: Results, env: str, variant: str) -> list[float]:
    """Returns of the runs, in the order of their seeds."""
    return [run["return"] for run in runs(results, env, variant)]


def runs(results: Results, env: str, variant: str) -> list[dict[str, Any]]:
    """In the order of their seeds."""
    found = results.get(env, {}).get(variant, {})
    return [found[seed] for seed in sorted(found, key=int)]


def summary(scores: list[float], decimals: int = 0) -> tuple[str, str]:
    """Mean and standard error; single seeds."""
    singles = " ".join(f"{score:.{decimals}f}" for score in scores)
    if len(scores) < 2:
        return "–", singles
    error = np.std(scores, ddof=1) / len(scores) ** 0.5
    return f"**{np.mean(scores):.{decimals}f}** ± {error:.{decimals}f}", singles
