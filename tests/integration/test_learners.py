"""More than one learner: the same results as one, exact resume, and what happens if one dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_service.algorithms.sampling import Background
from rl_service.common.errors import LearnerLostError, TrainingFailedError
from rl_service.config.algorithms import A2CSettings, TRPOSettings
from rl_service.config.settings import Settings
from rl_service.training.run import Run
from rl_service.training.train import train
from tests.support.language_models import LORA
from tests.support.learners import (
    ACTS,
    CRITIC,
    UNEVEN,
    NotCompiled,
    ask_learners,
    assert_all_are_equal,
    assert_close_weights,
    check_that_they_compute_what_one_does,
    learner_pids,
    trained,
    with_learners,
)
from tests.support.rays import command_environment
from tests.support.recorder import Recorder
from tests.support.small_runs import (
    GPT2,
    MLP,
    assert_resume_is_exact,
    small_settings,
    weights,
)
from tests.support.tuning import Watcher, run_plan, small_plan

pytestmark = pytest.mark.usefixtures("local_ray")

PATIENCE_S = 60.0

RUNS = {
    "mlp": small_settings(**UNEVEN),
    "torch": small_settings(algorithm=NotCompiled, **UNEVEN),
    "gpt2_critic": small_settings(CRITIC, **UNEVEN),
    "gpt2 acts": small_settings(ACTS, **UNEVEN),
    "gpt2 acts, torch": small_settings(ACTS, algorithm=NotCompiled, **UNEVEN),
    "a2c": small_settings(algorithm=A2CSettings),
    "trpo": small_settings(algorithm=TRPOSettings, fisher_fraction=0.4),
    "language model": small_settings(LORA, env="CartPole-v1", num_epochs=1),
}


@pytest.mark.parametrize("settings", RUNS.values(), ids=RUNS)
def test_two_learners_compute_what_one_does(settings: Settings, build: Any) -> None:
    check_that_they_compute_what_one_does(build, settings, 2, 3)


def test_early_stops_and_the_weight_of_the_kl_are_the_same_on_all(build: Any) -> None:
    settings = small_settings(
        num_epochs=10, actor_lr=1e-2, max_kl=1e-3, kl_coeff=0.2, kl_target=1e-4
    )
    rows = check_that_they_compute_what_one_does(build, settings, 2, 3)
    assert {row["num_epochs_done"] for row in rows} != {10}
    assert rows[-1]["kl_coeff"] != 0.2


@pytest.mark.parametrize("model", [MLP, GPT2], ids=["mlp", "gpt2_critic with dropout"])
def test_a_resume_with_as_many_learners_is_exact(model: Any, tmp_path: Path, build: Any) -> None:
    settings = small_settings(model, workers=2)
    settings = with_learners(settings, 2, num_cpus_per_env_runner=0.5)
    assert_resume_is_exact(build, settings, tmp_path, 2)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 3)])
def test_a_run_goes_on_with_another_number_of_learners(
    before: int, after: int, tmp_path: Path, build: Any
) -> None:
    settings = small_settings(ACTS)
    unbroken = build(with_learners(settings, before))
    trained(unbroken, 2)
    unbroken.save_checkpoint(str(tmp_path))
    trained(unbroken, 2)
    unbroken.stop()
    resumed = build(with_learners(settings, after))
    resumed.load_checkpoint(str(tmp_path))
    trained(resumed, 2)
    assert_close_weights(weights(resumed), weights(unbroken))


def test_learners_drop_other_features(build: Any) -> None:
    algorithm = build(with_learners(small_settings(GPT2), 3))
    trained(algorithm, 1)
    states = [state["cpu"].tobytes() for state in algorithm.learners.random_states]
    assert len({*states, torch.get_rng_state().numpy().tobytes()}) == 3
    assert_all_are_equal(algorithm)


def wait_until_none_is_left() -> None:
    deadline = time.monotonic() + PATIENCE_S
    while learner_pids():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class KillsALearner(Recorder):
    """Kills the second learner after the second iteration."""

    def on_iteration(self, row: Mapping[str, Any]) -> None:
        super().on_iteration(row)
        if row["training_iteration"] == 2:
            [pid] = learner_pids()
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_killed_learner_ends_the_run_which_resumes(workers: int, tmp_path: Path) -> None:
    settings = small_settings(workers=workers, output_dir=tmp_path)
    settings = with_learners(settings, 2)
    run, killer = Run.create(settings, command=[]), KillsALearner()
    with pytest.raises(LearnerLostError) as caught:
        train(settings, observer=killer, run=run)
    assert str(caught.value) == (
        "learner 1 is lost (its process died); continue from the last checkpoint with --resume"
    )
    wait_until_none_is_left()
    again = Recorder()
    assert train(settings, observer=again, run=run).status == "finished"
    assert [row["training_iteration"] for row in again.rows] == [3, 4]
    assert [row["training_iteration"] for row in run.read_progress()] == [1, 2, 3, 4]
    wait_until_none_is_left()


@pytest.mark.parametrize("victim", ["the one that is waited for", "another one"])
def test_a_learner_that_dies_while_the_others_wait_frees_them(victim: str, build: Any) -> None:
    """The last learner stands still, so that all wait for it; then one of them dies."""
    algorithm = build(with_learners(small_settings(CRITIC), 3))
    trained(algorithm, 1)
    pids = ask_learners(algorithm, lambda learner: os.getpid())
    os.kill(pids[1], signal.SIGSTOP)
    training = Background(lambda: trained(algorithm, 1))
    try:
        training._thread.join(2.0)
        assert training._thread.is_alive()
        number = 2 if victim == "the one that is waited for" else 1
        os.kill(pids[number - 1], signal.SIGKILL)
        training._thread.join(PATIENCE_S)
        assert not training._thread.is_alive()
        with pytest.raises(LearnerLostError, match=rf"^learner {number} is lost \(its process"):
            training.result()
        algorithm.stop()
        wait_until_none_is_left()
    finally:
        for pid in set(pids) & set(learner_pids()):
            os.kill(pid, signal.SIGKILL)


def _raises_from_now_on(learner: Any) -> None:
    def update_actor(batch: Any) -> Any:
        raise MemoryError("too little")

    learner._policy.update_actor = update_actor


def test_a_learner_that_raises_ends_the_run_with_its_words(build: Any) -> None:
    algorithm = build(with_learners(small_settings(), 3))
    trained(algorithm, 1)
    actor = next(iter(algorithm.learners._actors))
    actor.__ray_call__.remote(_raises_from_now_on)
    with pytest.raises(
        TrainingFailedError,
        match=r"^learner 1 failed: MemoryError: too little; look for its traceback in the log, "
        r"then continue from the last checkpoint with --resume$",
    ):
        trained(algorithm, 1)


def test_a_learner_that_cannot_start_ends_the_run(build: Any, monkeypatch: Any) -> None:
    algorithm = build(with_learners(small_settings(), 2))
    monkeypatch.setattr("rl_service.algorithms.learners.to_bytes", lambda state: b"half a state")
    with pytest.raises(TrainingFailedError, match=r"^learner 1 did not start: \w+Error: "):
        algorithm.train()
    wait_until_none_is_left()


def test_a_killed_run_leaves_no_learner(tmp_path: Path, ray_address: str) -> None:
    sizes = ["--set", "resources.num_env_runners=0", "--set", "resources.num_learners=2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rl_service.cli", "train", "-m", "mlp", "-e", "CartPole-v1", *sizes],
        cwd=tmp_path,
        env=command_environment(ray_address),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + PATIENCE_S
    while not list(tmp_path.glob("runs/*/*/progress.jsonl")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    found = learner_pids(of_all_jobs=True)
    assert len(found) == 1
    process.kill()
    process.wait()
    while learner_pids(of_all_jobs=True):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_trial_keeps_places_for_its_learners(tmp_path: Path) -> None:
    """Otherwise a second trial would take them: Ray has two CPUs."""
    plan = small_plan(tmp_path, settings={"resources": {"num_learners": 2}}, num_seeds=1)
    watcher = Watcher()
    result = run_plan(plan, str(tmp_path / "runs"), watcher)
    assert (result.status, result.trials, result.failed) == ("finished", 2, 0)
    assert watcher.max_concurrent == 1
