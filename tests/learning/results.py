"""The record of the learning runs: raw numbers as JSON, and the table that docs/results shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.learning.tasks import TASKS, Task

FOLDER = Path(__file__).parents[2] / "docs" / "results"
RAW = FOLDER / "learning.json"
TABLE = FOLDER / "learning.md"
_INTRODUCTION = """# Learning

Written by `make learn`; raw numbers in [learning.json](learning.json). Each row is one run with the
preset that the command uses by default. *Return* is the mean ± deviation of 20 deterministic
episodes of the run's best policy; episode i starts from seed + i. *Reached at* is the first
evaluation during training (10 episodes, other seeds) at or above the target. Runs may have shared
their machine with others, so minutes and env steps/s are not a benchmark. Seeds 1, 2 and 3 share 18
of their 20 episodes, so their returns are similar; newer runs use seeds 100 apart, which share
none.

{machine}
"""


def read() -> dict[str, dict[str, Any]]:
    """Results by task, then by seed."""
    results: dict[str, dict[str, Any]] = {}
    if RAW.exists():
        results = json.loads(RAW.read_text(encoding="utf-8"))
    return results


def record(task: Task, seed: int, result: dict[str, Any], machine: str) -> None:
    """Adds a run and writes both files again."""
    results = read()
    results.setdefault(task.name, {})[str(seed)] = {**result, "machine": machine}
    FOLDER.mkdir(parents=True, exist_ok=True)
    RAW.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    TABLE.write_text(table(results), encoding="utf-8")


def table(results: dict[str, dict[str, Any]]) -> str:
    """All recorded runs as Markdown."""
    machines = sorted({run["machine"] for runs in results.values() for run in runs.values()})
    lines = [_INTRODUCTION.format(machine="Machine: " + "; ".join(machines) + ".")]
    for task in TASKS:
        runs = results.get(task.name, {})
        if not runs:
            continue
        mean = np.mean([run["episode_return_mean"] for run in runs.values()])
        lines += [
            f"## {task.name}\n",
            f"`{task.command} --seed SEED` · target {task.target:g} · "
            f"mean over {len(runs)} seeds **{mean:.1f}**\n",
            "| seed | return | env steps | reached at | minutes | env steps/s |",
            "|---|---|---|---|---|---|",
            *(_row(seed, run) for seed, run in sorted(runs.items())),
            "",
        ]
    return "\n".join(lines)


def _row(seed: str, run: dict[str, Any]) -> str:
    reached = "–" if run["reached_at"] is None else f"{run['reached_at']:,}"
    return (
        f"| {seed} | {run['episode_return_mean']:.1f} ± {run['episode_return_std']:.1f} "
        f"| {run['env_steps']:,} | {reached} | {run['minutes']:.1f} "
        f"| {run['env_steps_per_s']:,.0f} |"
    )
