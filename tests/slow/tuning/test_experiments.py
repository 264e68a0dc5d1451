"""Every way of searching, of stopping, of failing and of going on."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rl_service.common.errors import TuningError
from rl_service.tuning import experiment as experiment_module
from rl_service.tuning.experiment import tune_experiment
from rl_service.tuning.plan import TuningPlan, new_experiment
from rl_service.tuning.storage import find_experiment
from rl_service.tuning.trial_view import TrialView
from tests.support.rays import actor_pids
from tests.support.tuning import NAME, Watcher, iterations, run_plan, small_plan
from tests.support.wandb_runs import curve, records

pytestmark = pytest.mark.usefixtures("local_ray")


def test_each_trial_is_a_run_of_its_own_in_the_trackers(tmp_path: Path) -> None:
    tracking = {"tensorboard": True, "wandb_project": "tests"}
    result = run_plan(small_plan(tmp_path, settings={"tracking": tracking}), str(tmp_path / "runs"))
    folders = list(Path(result.experiment).glob("trial_*"))
    assert len(folders) == 2
    for folder in folders:
        assert len(list(folder.glob("events.out.tfevents.*"))) >= 1
        first = min((folder / "wandb").glob("offline-run-*"))
        assert [step for step, _ in curve(first, "score")] == [64, 128, 192]
        assert [step for step, _ in curve(first, "actor_lr")] == [64, 128, 192]
    best = Path(result.experiment, f"trial_{result.best_trial}")
    artifacts = [
        record.artifact.name
        for run in (best / "wandb").glob("offline-run-*")
        for record in records(run)
        if record.HasField("artifact") and record.artifact.type == "model"
    ]
    assert artifacts == [NAME]


def test_early_stopping_ends_trials_before_their_time(tmp_path: Path) -> None:
    plan = small_plan(
        tmp_path,
        num_samples=6,
        # Scores that differ: the scheduler stops none of trials that are alike.
        settings={
            "stop": {"iterations": 8},
            "env": {"max_episode_steps": 200},
            "evaluation": {"num_episodes": 5},
        },
        scheduler={"name": "asha", "grace_env_steps": 64, "reduction_factor": 2},
        search_alg={"name": "random"},
    )
    watcher = Watcher()
    result = run_plan(plan, str(tmp_path / "runs"), watcher)
    steps = [trial.env_steps or 0 for trial in watcher.trials]
    assert result.trials == 6
    assert min(steps) < 8 * 64
    assert max(steps) == 8 * 64
    for trial in watcher.trials:
        assert trial.status == ("finished" if trial.env_steps == 8 * 64 else "stopped early")
    # What was stopped has its checkpoint, and with it its best policy.
    checkpoints = list(Path(result.experiment).glob("trial_*/checkpoint_*/seed_3/best/policy.json"))
    assert len({path.parents[3] for path in checkpoints}) == 6


def test_the_median_rule_and_two_objectives(tmp_path: Path) -> None:
    plan = small_plan(
        tmp_path,
        num_samples=4,
        scheduler={"name": "median", "grace_env_steps": 64, "min_samples": 2},
        search_alg={"objectives": ["score", "env_steps_per_s"]},
        search_space={
            "algorithm.actor_lr": {"loguniform": [1e-4, 1e-2]},
            "model.hidden_sizes": {"choice": [[8], [16, 16]]},
            "algorithm.minibatch_size": {"power_of_two": [16, 64]},
        },
    )
    result = run_plan(plan, str(tmp_path / "runs"))
    assert (result.status, result.trials, result.failed) == ("finished", 4, 0)
    assert result.best_values is not None
    assert result.best_values["model.hidden_sizes"] in ([8], [16, 16])
    table = Path(result.experiment, "report", "results.csv").read_text(encoding="utf-8")
    assert "yes" in table


def test_a_population_trains_with_the_settings_that_it_changes(tmp_path: Path) -> None:
    plan = small_plan(
        tmp_path,
        num_samples=2,
        settings={"stop": {"iterations": 4}},
        scheduler={"name": "pbt", "interval_env_steps": 64, "quantile_fraction": 0.5},
    )
    watcher = Watcher()
    result = run_plan(plan, str(tmp_path / "runs"), watcher)
    assert (result.status, result.failed) == ("finished", 0)
    lines = iterations(result.experiment)
    for trial in watcher.trials:  # what Tune wanted last, beside what the optimiser took
        wanted = trial.values["algorithm.actor_lr"]
        assert lines[trial.trial_id][-1]["actor_lr"] == pytest.approx(wanted)
    rates = [{row["actor_lr"] for row in rows} for rows in lines.values()]
    # One continued from the other's weights with a rate of its own.
    assert max(map(len, rates)) > 1
    assert all(1e-4 <= rate <= 1e-2 for each in rates for rate in each)


def test_each_seed_of_a_trial_has_its_own_least_workers_in_the_trials_placement_group(
    tmp_path: Path,
) -> None:
    resources = {
        "num_env_runners": 1,
        "min_env_runners": 1,
        "max_env_runners": 3,
        "num_cpus_per_env_runner": 0.5,
    }
    watcher = Watcher()
    plan = small_plan(tmp_path, num_samples=1, num_seeds=2, settings={"resources": resources})
    result = run_plan(plan, str(tmp_path / "runs"), watcher)
    assert (result.status, result.failed, watcher.max_concurrent) == ("finished", 0, 1)
    [rows] = iterations(result.experiment).values()
    assert {row["num_env_runners"] for row in rows} == {1}
    assert [row["num_env_steps_sampled_lifetime"] for row in rows] == [64, 128, 192]
    assert all(row["scaling_reason"] for row in rows)


def test_values_that_contradict_each_other_cost_one_trial(tmp_path: Path) -> None:
    """A batch of 64 has no minibatch of 128, which is drawn with one of 128 alone."""
    sizes = ("algorithm.train_batch_size", "algorithm.minibatch_size")
    choices: list[dict[str, Any]] = [
        {"algorithm.actor_lr": rate, **dict(zip(sizes, values, strict=True))}
        for rate, values in ((1e-3, (64, 128)), (2e-3, (128, 128)))
    ]
    plan = small_plan(
        tmp_path,
        search_space={key: {"power_of_two": [64, 128]} for key in sizes}
        | {"algorithm.actor_lr": {"loguniform": [1e-4, 1e-2]}},
        points_to_evaluate=[choices[1]],
    )
    # As a searcher would draw it: a point like that is refused.
    drawn = TuningPlan(
        plan.name, plan.tuning, plan.space, [plan.space.coordinates(one) for one in choices], []
    )
    watcher = Watcher()
    result = run_plan(drawn, str(tmp_path / "runs"), watcher)
    assert (result.status, result.trials, result.failed) == ("finished", 2, 1)
    assert result.best_values == pytest.approx(choices[1])
    [failed] = [trial for trial in watcher.trials if trial.status == "failed"]
    assert failed.values == pytest.approx(choices[0])
    assert failed.num_failures == 1  # and no restart, which would do the same
    assert "minibatch_size=128 is larger than algorithm.train_batch_size=64" in str(failed.error)
    assert watcher.messages[0] == f"trial {failed.trial_id} failed: {failed.error}"
    assert not any("starts again" in message for message in watcher.messages)


def test_a_policy_that_cannot_be_written_is_said_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = small_plan(tmp_path)
    experiment = new_experiment(plan, str(tmp_path / "runs"))
    (tmp_path / "checkpoints").write_text("in the way", encoding="utf-8")
    with pytest.raises(TuningError) as error:
        tune_experiment(plan, experiment, Watcher(), resume=False)
    assert re.fullmatch(
        rf"none of 2 trials left a policy \(cannot write .*checkpoints.*: not a directory; fix "
        rf"that, and resume with rl-service tune --resume {experiment}\); the table is .*",
        str(error.value),
    )
    (tmp_path / "checkpoints").unlink()
    # Nor does a picture that cannot be drawn cost the result.
    monkeypatch.setattr(experiment_module, "draw_figures", lambda *_: 1 / 0)
    watcher = Watcher()
    result = tune_experiment(plan, experiment, watcher, resume=True)
    assert (result.status, result.registered) == ("finished", f"{NAME}:1")
    assert Path(str(result.preset)).is_file()
    assert any(message.startswith("no figures: division by zero") for message in watcher.messages)


def test_a_stopped_experiment_says_what_is_left_of_it(tmp_path: Path) -> None:
    class Stops(Watcher):
        def on_trials(self, trials: Sequence[TrialView]) -> None:
            super().on_trials(trials)
            if len(trials) == 2 and trials[1].env_steps:
                signal.raise_signal(signal.SIGINT)

    plan = small_plan(
        tmp_path, num_samples=2, max_concurrent=1, settings={"stop": {"iterations": 6}}
    )
    experiment = new_experiment(plan, str(tmp_path / "runs"))
    watcher = Stops()
    assert tune_experiment(plan, experiment, watcher, resume=False).status == "stopped"
    assert [trial.status for trial in watcher.trials] == ["finished", "paused"]
    again = Watcher()
    assert tune_experiment(plan, experiment, again, resume=True).status == "finished"
    assert [trial.status for trial in again.trials] == ["finished", "finished"]


def test_an_experiment_that_was_moved_continues_where_it_lies_now(tmp_path: Path) -> None:
    class Stops(Watcher):
        def on_trials(self, trials: Sequence[TrialView]) -> None:
            super().on_trials(trials)
            if trials[0].env_steps:
                signal.raise_signal(signal.SIGINT)

    plan = small_plan(
        tmp_path, num_samples=2, max_concurrent=1, settings={"stop": {"iterations": 6}}
    )
    begun = new_experiment(plan, str(tmp_path / "runs"))
    watcher = Stops()
    assert tune_experiment(plan, begun, watcher, resume=False).status == "stopped"
    assert len(watcher.trials) == 1  # the other one is drawn after the move
    (tmp_path / "elsewhere").mkdir()
    moved = Path(begun.root).rename(tmp_path / "elsewhere" / "renamed")
    result = tune_experiment(plan, find_experiment(str(moved)), Watcher(), resume=True)
    assert (result.status, result.trials, result.failed) == ("finished", 2, 0)
    assert result.experiment == str(moved)
    for rows in iterations(result.experiment).values():
        assert [row["training_iteration"] for row in rows] == [*range(1, 7)]
    assert not Path(begun.root).exists()


def test_an_experiment_in_which_all_fail_says_why(tmp_path: Path) -> None:
    env = {
        "id": "tests.support.tuning:NaNReturns",
        "kwargs": {"broken": True},
        "max_episode_steps": None,
    }
    plan = small_plan(tmp_path, settings={"env": env})
    with pytest.raises(
        TuningError, match=r"none of 2 trials left a policy \(.*reward is nan.*results.csv"
    ):
        run_plan(plan, str(tmp_path / "runs"))
    assert not (tmp_path / "policies").exists()
    [table] = (tmp_path / "runs").glob("*/report/results.csv")
    assert table.read_text(encoding="utf-8").count(",failed,") == 2


def test_a_trial_whose_process_dies_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    class Kills(Watcher):
        killed: str | None = None

        def on_trials(self, trials: Sequence[TrialView]) -> None:
            super().on_trials(trials)
            if self.killed is None and trials[0].env_steps == 2 * 64:
                self.killed = trials[0].trial_id
                for pid in actor_pids("TuningTrial"):
                    os.kill(pid, signal.SIGKILL)

    plan = small_plan(tmp_path, num_samples=1, settings={"stop": {"iterations": 5}}, max_failures=1)
    watcher = Kills()
    result = run_plan(plan, str(tmp_path / "runs"), watcher)
    assert (result.status, result.failed) == ("finished", 0)
    [trial] = watcher.trials
    assert trial.num_failures == 1
    [rows] = iterations(result.experiment).values()
    assert [row["training_iteration"] for row in rows] == [1, 2, 3, 4, 5]
    assert any("lost its process" in message for message in watcher.messages)


def test_an_experiment_beyond_the_file_system(tmp_path: Path) -> None:
    plan = small_plan(tmp_path)
    storage = f"dir::file://{tmp_path}/store"
    (tmp_path / "store").mkdir()
    result = run_plan(plan, storage)
    assert result.experiment.startswith(storage)
    assert str(result.preset).endswith("report/best.yaml")
    assert len(list((tmp_path / "store").rglob("report/results.csv"))) == 1
    assert result.registered == f"{NAME}:1"


def test_the_time_budget_ends_what_runs_and_the_best_so_far_is_the_result(tmp_path: Path) -> None:
    plan = small_plan(
        tmp_path, num_samples=2, settings={"stop": {"iterations": 100_000}}, time_budget_s=25
    )
    result = run_plan(plan, str(tmp_path / "runs"))
    assert result.status == "finished"
    assert result.registered == f"{NAME}:1"


def test_a_finished_experiment_goes_on_to_the_same_result(tmp_path: Path) -> None:
    plan = small_plan(tmp_path)
    experiment = new_experiment(plan, str(tmp_path / "runs"))
    first = tune_experiment(plan, experiment, Watcher(), resume=False)
    before = iterations(first.experiment)
    again = tune_experiment(plan, experiment, Watcher(), resume=True)
    assert again == first
    assert iterations(first.experiment) == before
