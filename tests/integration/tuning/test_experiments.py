"""Whole experiments: what is searched, who is stopped, what fails, what is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_service.common.errors import CheckpointError
from rl_service.config.load import load_settings
from rl_service.policies import load_bundle
from rl_service.policies.registry import PolicyRegistry
from rl_service.training.run import Run
from rl_service.tuning.experiment import tune_experiment
from rl_service.tuning.plan import new_experiment
from tests.support.tuning import NAME, Watcher, run_plan, small_plan

pytestmark = pytest.mark.usefixtures("local_ray")


def test_the_best_of_several_seeds_and_trials_is_registered(tmp_path: Path) -> None:
    points = [{"algorithm.actor_lr": 2e-3}]
    plan = small_plan(tmp_path, num_samples=3, num_seeds=2, points_to_evaluate=points)
    watcher = Watcher()
    result = run_plan(plan, str(tmp_path / "runs"), watcher)
    assert (result.status, result.trials, result.failed) == ("finished", 3, 0)
    assert result.env_steps == 3 * 2 * 3 * 64
    assert (watcher.max_concurrent, result.episodes) == (2, 2)
    assert 2e-3 in [pytest.approx(t.values["algorithm.actor_lr"]) for t in watcher.trials]
    scores = {trial.trial_id: trial.best_score for trial in watcher.trials}
    assert result.best_score == max(scores.values())  # type: ignore[type-var]
    assert scores[str(result.best_trial)] == result.best_score
    assert result.registered == f"{NAME}:1"
    best = PolicyRegistry(str(tmp_path / "policies")).resolve(f"{NAME}@best")
    assert best.version == 1
    spec = load_bundle(str(result.policy)).spec
    assert spec.evaluation["episode_return_mean"] == best.episode_return_mean
    preset = load_settings(config=Path(str(result.preset))).settings
    assert preset.seed == result.seed
    assert result.best_values is not None
    assert preset.algorithm == plan.space.settings(result.best_values).algorithm
    report = Path(result.experiment, "report", "results.csv").read_text(encoding="utf-8")
    assert report.splitlines()[1].startswith(f"{result.best_trial},finished,")


def test_trials_without_a_finite_score_fail_at_once_and_never_win(tmp_path: Path) -> None:
    kwargs = {"choice": [{"broken": True}, {"broken": False}]}
    plan = small_plan(
        tmp_path,
        settings={"env": {"id": "tests.support.tuning:NaNReturns", "max_episode_steps": None}},
        search_space={"env.kwargs": kwargs},
        points_to_evaluate=[{"env.kwargs": {"broken": broken}} for broken in (True, False)],
    )
    watcher = Watcher()
    result = run_plan(plan, str(tmp_path / "runs"), watcher)
    assert (result.trials, result.failed, result.best_score) == (2, 1, 3.0)
    [failed] = [trial for trial in watcher.trials if trial.status == "failed"]
    assert failed.values == {"env.kwargs": {"broken": True}}
    assert failed.num_failures == 1  # it would do the same again
    assert failed.error is not None
    assert "reward is nan" in failed.error
    assert f"trial {failed.trial_id} failed: {failed.error}" in watcher.messages


def test_an_experiment_that_was_killed_before_its_first_snapshot_begins(tmp_path: Path) -> None:
    plan = small_plan(tmp_path, num_samples=1)
    experiment = new_experiment(plan, str(tmp_path / "runs"))
    result = tune_experiment(plan, experiment, Watcher(), resume=True)
    assert (result.status, result.trials) == ("finished", 1)


def test_an_experiment_is_run_by_one_process_at_a_time(tmp_path: Path) -> None:
    plan = small_plan(tmp_path)
    experiment = new_experiment(plan, str(tmp_path / "runs"))
    folder = experiment.local_path
    assert folder is not None
    with (
        Run(folder, plan.base).lock(),
        pytest.raises(CheckpointError, match="in progress in another process"),
    ):
        tune_experiment(plan, experiment, Watcher(), resume=True)
