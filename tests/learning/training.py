"""Trainings as a user starts them: the command, in a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from rl_service.common.files import write_atomic

ROOT = Path(__file__).parents[2]
Flat = dict[str, Any]
"""Settings by dotted key."""
Results = dict[str, dict[str, dict[str, Any]]]
"""Runs by environment, variant and seed."""


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


def train(folder: Path, *arguments: str, ray_address: str = "") -> dict[str, Any]:
    """Runs `rl-service train` into a folder; returns its `--json` object.

    Args:
        folder: of the run.
        arguments: of the command.
        ray_address: of a Ray to share; by default the command starts its own.
    """
    done = subprocess.run(
        [
            *(sys.executable, "-m", "rl_service.cli", "train", *arguments),
            *("--json", "-o", str(folder)),
        ],
        cwd=ROOT,
        env={**os.environ, "RAY_ADDRESS": ray_address},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


Measure = Callable[[dict[str, Any]], dict[str, Any]]
"""From the `--json` object of a run that is still in its folder to more entries of the record."""


def train_job(job: Job, flat: Flat, measure: Measure = lambda _: {}) -> dict[str, Any]:
    """One run in a process of its own: what it reached, and its evaluations on the way."""
    settings: dict[str, Any] = {"seed": job.seed, "env": {"id": job.env}}
    for dotted, value in flat.items():
        group, _, key = dotted.partition(".")
        settings.setdefault(group, {})[key] = value
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.yaml"
        file.write_text(json.dumps(settings), encoding="utf-8")  # which is YAML, too
        shared = os.environ.get("RAY_ADDRESS", "")
        result = train(Path(folder), "--config", str(file), ray_address=shared)
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
    console, results, lock = Console(), read(record), Lock()

    def run(job: Job) -> None:
        try:
            found = train_job(job, settings_of(job), measure)
        except subprocess.CalledProcessError as error:
            console.print(*job, f"failed with status {error.returncode}")  # the others go on
            return
        with lock:
            results.setdefault(job.env, {}).setdefault(job.variant, {})[str(job.seed)] = found
            write_atomic(record, json.dumps(results, indent=1) + "\n")
        console.print(*job, found["return"])

    if parallel:
        with ThreadPoolExecutor(parallel) as pool:
            list(pool.map(run, jobs))
    return results


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
