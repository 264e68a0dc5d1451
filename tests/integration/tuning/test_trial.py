"""A trial by itself: its checkpoints, other settings after a restart, its seeds."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from ray import tune
from ray.train._internal.storage import StorageContext

from rl_service.algorithms.policy import ActorCriticPolicy
from rl_service.common.errors import TrainingFailedError
from rl_service.common.metrics import ENV_STEPS
from rl_service.training.trainer import Trainer
from rl_service.tuning.plan import TuningPlan
from rl_service.tuning.trial import TuningTrial
from tests.support.tuning import small_plan

pytestmark = pytest.mark.usefixtures("local_ray")


GPT2_ACTOR = {"model": {"name": "gpt2_critic", "actor_net": "gpt2", "n_head": 2, "n_embd": 16}}


@pytest.fixture
def start() -> Iterator[Any]:
    """Starts trials, which end with the test."""
    started: list[TuningTrial] = []

    def one(plan: TuningPlan, lr: float, num_seeds: int = 1) -> TuningTrial:
        config = {"algorithm.actor_lr": lr}
        trainable = tune.with_parameters(
            TuningTrial, space=plan.space, num_seeds=num_seeds, store_variables={}
        )
        started.append(trainable(config=config))
        return started[-1]

    yield one
    for trial in started:
        trial.stop()


def optimizer_lr(trial: TuningTrial) -> float:
    """The learning rate that Adam's next step takes."""
    policy: ActorCriticPolicy = trial._members[0].trainer.algo.learner_policy
    [group] = policy.optimizers["actor"].optimizer.param_groups
    return float(group["lr"])


def test_a_perturbed_learning_rate_reaches_the_optimiser(tmp_path: Path, start: Any) -> None:
    plan = small_plan(tmp_path, settings={"stop": {"iterations": 9}})
    donor, exploiter = start(plan, 1e-3), start(plan, 5e-3)
    donor.train()
    (tmp_path / "donor").mkdir()
    donor.save_checkpoint(str(tmp_path / "donor"))
    exploiter.train()
    # What Tune does to a trial that takes over the weights of a better one.
    assert exploiter.reset_config({"algorithm.actor_lr": 8e-4})
    exploiter.load_checkpoint(str(tmp_path / "donor"))
    result = exploiter.train()
    assert optimizer_lr(exploiter) == pytest.approx(8e-4)
    assert result["train/actor_lr"] == pytest.approx(8e-4)
    assert result["num_env_steps_sampled_lifetime"] == 2 * 64
    assert optimizer_lr(donor) == pytest.approx(1e-3)


@pytest.mark.parametrize("model", [{}, GPT2_ACTOR], ids=["mlp", "gpt2 actor"])
def test_each_seed_trains_as_if_alone_and_scores_are_means(
    tmp_path: Path, start: Any, model: dict[str, Any]
) -> None:
    plan = small_plan(tmp_path, settings=model)
    before = start(plan, 1e-3, num_seeds=2)
    before.train()
    (tmp_path / "state").mkdir()
    before.save_checkpoint(str(tmp_path / "state"))
    resumed = start(plan, 1e-3, num_seeds=2)
    resumed.load_checkpoint(str(tmp_path / "state"))
    both, singles = resumed.train(), []
    for seed in (3, 103):
        alone = start(small_plan(tmp_path, settings={**model, "seed": seed}), 1e-3)
        alone.train()
        singles.append(alone.train())
    assert both["seed_scores"] == [single["score"] for single in singles]
    for key in ("score", "train/policy_loss", "train/entropy"):
        assert both[key] == pytest.approx(fmean(single[key] for single in singles), abs=1e-9)


def stored_trial(folder: Path) -> Callable[[], TuningTrial]:
    """Starts one trial whose checkpoints are kept in a folder, as often as it is called."""
    plan = small_plan(folder, settings={"stop": {"iterations": 9}})
    trainable = tune.with_parameters(TuningTrial, space=plan.space, num_seeds=1, store_variables={})

    def start() -> TuningTrial:
        storage = StorageContext(str(folder), "experiment", trial_dir_name="trial")
        return trainable(config={"algorithm.actor_lr": 1e-3}, storage=storage)

    return start


@pytest.mark.parametrize("half", ["result.json", "sizes.json"])
def test_a_report_whose_checkpoint_is_there_is_told_again_and_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: str
) -> None:
    start = stored_trial(tmp_path)
    trial, reports, saved = start(), [], []
    for _ in range(4):
        reports.append(trial.train()["score"])
        saved.append(trial.save())
    trial.stop()
    torn = Path(saved[3].checkpoint.path, half)
    torn.write_text(torn.read_text()[:-1])
    iterate, ran = Trainer.iterate, []
    monkeypatch.setattr(Trainer, "iterate", lambda self: ran.append(1) or iterate(self))
    for known in (0, None):  # what Tune had noted of them: one, or none
        again = start()
        if known is not None:
            again.restore(saved[known])
        told = [again.train()["score"] for _ in reports[0 if known is None else 1 :]]
        again.stop()
        assert told == reports[-len(told) :]
        assert len(ran) == 1  # the torn one alone
        ran.clear()


def test_a_trial_goes_on_from_what_is_kept_if_its_snapshot_is_older(tmp_path: Path) -> None:
    start = stored_trial(tmp_path)
    trial, reports, saved = start(), [], []
    for _ in range(5):
        reports.append(trial.train())
        saved.append(trial.save())
    trial.stop()
    for gone in saved[:3]:
        shutil.rmtree(gone.checkpoint.path)
    again = start()
    again.restore(saved[1])
    told = again.train()
    again.stop()
    assert [told[key] for key in ("score", ENV_STEPS)] == [
        reports[4][key] for key in ("score", ENV_STEPS)
    ]


def test_a_trial_that_had_ended_ends_again_with_what_it_had(tmp_path: Path, start: Any) -> None:
    plan = small_plan(tmp_path, settings={"stop": {"iterations": 1}})
    ended = start(plan, 1e-3)
    last = ended.train()
    assert last["done"]
    (tmp_path / "state").mkdir()
    ended.save_checkpoint(str(tmp_path / "state"))
    again = start(plan, 1e-3)
    again.load_checkpoint(str(tmp_path / "state"))
    result = again.train()
    assert result["done"]
    assert {key: result[key] for key in ("score", "best_score")} == {
        key: last[key] for key in ("score", "best_score")
    }
    assert result["num_env_steps_sampled_lifetime"] == 64


def test_scores_that_are_not_finite_fail_the_trial(tmp_path: Path, start: Any) -> None:
    broken = {"id": "tests.support.tuning:NaNReturns", "kwargs": {"broken": True}}
    trial = start(small_plan(tmp_path, settings={"env": broken}), 1e-3)
    with pytest.raises(TrainingFailedError):
        trial.step()


def test_episodes_that_never_end_fail_the_trial(tmp_path: Path, start: Any) -> None:
    settings = {"env": {"max_episode_steps": 500}, "evaluation": {"interval": 0}}
    settings["stop"] = {"iterations": 1}
    settings["algorithm"] = {"train_batch_size": 4, "minibatch_size": 4}
    trial = start(small_plan(tmp_path, settings=settings), 1e-3)
    with pytest.raises(TrainingFailedError, match="seed 3 has no finite score after 4 env steps"):
        trial.step()
