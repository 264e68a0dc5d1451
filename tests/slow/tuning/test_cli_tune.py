"""`rl-service tune` that is killed, interrupted and resumed."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_service.tuning.storage import find_experiment, saved_trials
from tests.support.tuning import (
    PATIENCE_S,
    iterations,
    run_command,
    start_command,
    write_tuning_file,
)

NUM_ITERATIONS = 40
"""Of a trial, so that one lasts for seconds."""


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def trials_of(experiment: Path) -> dict[str, Any]:
    """Configuration and status of each trial in the newest snapshot, by its id."""
    snapshots = sorted(experiment.glob("experiment_state-*.json"), key=lambda p: p.stat().st_mtime)
    if not snapshots:
        return {}
    try:
        content = json.loads(snapshots[-1].read_text(encoding="utf-8"))
    except ValueError:  # Tune is just writing over it
        return {}
    rows = [json.loads(trial) for trial, _ in content["trial_data"]]
    return {row["trial_id"]: row for row in rows}


def checkpoints(experiment: Path) -> set[Path]:
    return set(experiment.glob("trial_*/checkpoint_*"))


def num_finished(experiment: Path) -> int:
    return sum(row["status"] == "TERMINATED" for row in trials_of(experiment).values())


@pytest.mark.timeout(600)
def test_killed_and_interrupted_experiments_go_on_to_their_end(tmp_path: Path) -> None:
    write_tuning_file(
        tmp_path / "small.yaml",
        num_samples=3,
        max_concurrent=1,
        settings={"stop": {"iterations": NUM_ITERATIONS}},
    )
    first = start_command("small.yaml", cwd=tmp_path)
    wait_for(lambda: list(tmp_path.glob("runs/*/tuning.yaml")), first)
    [experiment] = tmp_path.glob("runs/*")
    wait_for(lambda: num_finished(experiment) >= 1, first)
    first.kill()
    first.communicate()
    saved_trials(find_experiment(str(experiment)))  # puts a copy in place of half a file
    before = trials_of(experiment)
    finished = [name for name, row in before.items() if row["status"] == "TERMINATED"]
    states = {
        file: file.stat().st_mtime_ns
        for name in finished
        for file in experiment.glob(f"trial_{name}/checkpoint_*/seed_3/training_state.pt")
    }
    assert before

    second = start_command("--resume", experiment.name, "--json", cwd=tmp_path)
    known = checkpoints(experiment)
    wait_for(lambda: checkpoints(experiment) - known, second)
    second.send_signal(signal.SIGINT)
    out, err = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 130, err
    assert f"rl-service tune --resume {experiment}" in out
    assert json.loads(out.splitlines()[-1])["status"] == "stopped"

    status, out, err = run_command("--resume", str(experiment), "--json", cwd=tmp_path)
    assert (status, err) == (0, "")
    result = json.loads(out.splitlines()[-1])
    assert (result["status"], result["trials"], result["failed"]) == ("finished", 3, 0)
    assert result["env_steps"] == 3 * NUM_ITERATIONS * 64
    after = trials_of(experiment)
    assert {name: after[name]["config"] for name in before} == {
        name: row["config"] for name, row in before.items()
    }
    # What had finished was not touched, and nothing trained twice.
    assert {file: file.stat().st_mtime_ns for file in states} == states
    for rows in iterations(str(experiment)).values():
        assert [row["training_iteration"] for row in rows] == [*range(1, NUM_ITERATIONS + 1)]
    assert (experiment / "report" / "results.csv").is_file()
    assert (tmp_path / "policies" / "cartpole-v1-mlp-ppo").is_dir()
