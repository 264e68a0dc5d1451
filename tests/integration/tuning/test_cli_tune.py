"""`rl-service tune` as a user runs it: killed, interrupted, resumed, refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_service.machine import available_cpus
from rl_service.tuning.snapshot import saved_trials
from rl_service.tuning.storage import ExperimentStorage
from tests.conftest import Command
from tests.support.tuning import iterations, write_tuning_file

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": "", "OMP_NUM_THREADS": "1"}
PATIENCE_S = 240.0
NUM_ITERATIONS = 40
"""Of a trial, so that one lasts for seconds."""


def start(*arguments: str, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rl_service.cli", "tune", *arguments],
        cwd=cwd,
        env={**ENVIRONMENT, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*arguments: str, cwd: Path, **environment: str) -> tuple[int, str, str]:
    process = start(*arguments, cwd=cwd, **environment)
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


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
    first = start("small.yaml", cwd=tmp_path)
    wait_for(lambda: list(tmp_path.glob("runs/*/tuning.yaml")), first)
    [experiment] = tmp_path.glob("runs/*")
    wait_for(lambda: num_finished(experiment) >= 1, first)
    first.kill()
    first.communicate()
    saved_trials(ExperimentStorage.open(str(experiment)))  # puts a copy in place of half a file
    before = trials_of(experiment)
    finished = [name for name, row in before.items() if row["status"] == "TERMINATED"]
    states = {
        file: file.stat().st_mtime_ns
        for name in finished
        for file in experiment.glob(f"trial_{name}/checkpoint_*/seed_3/training_state.pt")
    }
    assert before

    second = start("--resume", experiment.name, "--json", cwd=tmp_path)
    known = checkpoints(experiment)
    wait_for(lambda: checkpoints(experiment) - known, second)
    second.send_signal(signal.SIGINT)
    out, err = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 130, err
    assert f"rl-service tune --resume {experiment}" in out
    assert json.loads(out.splitlines()[-1])["status"] == "stopped"

    status, out, err = run("--resume", str(experiment), "--json", cwd=tmp_path)
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "tune needs a file; write one with a search_space or try tuning/CartPole-v1"),
        (("nosuch.yaml",), "nosuch.yaml"),
        (("empty.yaml",), "search_space is empty"),
        (("small.yaml", "--storage", "nosuch://x"), "protocol fsspec knows here"),
        (("small.yaml", "--storage", "small.yaml"), "cannot write"),
        (("--resume", "nothing"), "no tuning experiment 'nothing'"),
        (("small.yaml", "--resume", "x"), "--resume takes everything from the experiment"),
        (("small.yaml", "--num-samples", "0"), "see rl-service tune --help"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    rl_service: Command, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    write_tuning_file(tmp_path / "small.yaml")
    write_tuning_file(tmp_path / "empty.yaml", search_space={})
    assert words in rl_service("tune", *arguments).refusal
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.yaml", "small.yaml"]


def test_a_trial_that_can_never_be_placed_is_refused_before_it_waits(tmp_path: Path) -> None:
    cpus = available_cpus()
    resources = {"num_env_runners": cpus, "num_envs_per_env_runner": 1}
    algorithm = {"train_batch_size": 64 * cpus}
    write_tuning_file(
        tmp_path / "large.yaml", settings={"resources": resources, "algorithm": algorithm}
    )
    status, _, err = run("large.yaml", cwd=tmp_path)
    assert status == 2
    [line] = err.splitlines()
    assert f"a trial takes {cpus + 1} CPUs (1 for the learner, {cpus} x 1" in line
    assert not list(tmp_path.glob("runs/*"))


def test_an_experiment_is_named_before_ray_is_connected(tmp_path: Path) -> None:
    write_tuning_file(tmp_path / "small.yaml")
    nowhere = "127.0.0.1:1"  # what dies while it connects says no more than what is refused
    status, out, err = run("small.yaml", cwd=tmp_path, RAY_ADDRESS=nowhere)
    assert (status, err.count("\n")) == (2, 1), err
    assert out.startswith(f"experiment: {tmp_path}/runs/small_")
