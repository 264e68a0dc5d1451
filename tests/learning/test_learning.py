"""Learning is promised and kept: each task on five seeds, as a user runs it (`make learn`)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.learning import results
from tests.learning.tasks import SEEDS, TASKS, Task
from tests.learning.training import machine, train


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_task_reaches_its_target(task: Task, tmp_path: Path) -> None:
    scores = []
    for seed in SEEDS:
        result = run(task, seed, tmp_path / str(seed))
        results.record(task, seed, result, machine())
        scores.append(result["episode_return_mean"])
    assert np.mean(scores) >= task.target, scores


def run(task: Task, seed: int, folder: Path) -> dict[str, Any]:
    """Trains in a process of its own; returns its `--json` object and when it got there."""
    folder.mkdir()
    started = time.monotonic()
    result = train(folder, *task.command.split()[2:], "--seed", str(seed))
    progress = (Path(result.pop("run")) / "progress.jsonl").read_text().splitlines()
    del result["policy"]
    return result | {
        "minutes": (time.monotonic() - started) / 60,
        "reached_at": reached_at(task, [json.loads(line) for line in progress]),
    }


def reached_at(task: Task, rows: list[dict[str, Any]]) -> int | None:
    for row in rows:
        score = row.get("evaluation/episode_return_mean")
        if score is not None and score >= task.target:
            return int(row["num_env_steps_sampled_lifetime"])
    return None
