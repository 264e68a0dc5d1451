"""Which policy a run leaves, and how it ends, whatever its scores."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from custom_models.configs import MLPConfig
from rl_service.algorithms.base import OnPolicyAlgorithm
from rl_service.algorithms.build import build_algorithm
from rl_service.config.algorithms import PPOSettings
from rl_service.config.settings import (
    EnvSettings,
    EvaluationSettings,
    ResourceSettings,
    Settings,
    StopSettings,
    TrackingSettings,
)
from rl_service.policies import load_bundle
from rl_service.training import train as training
from rl_service.training.best_policy import BestPolicy
from rl_service.training.evaluation import EvaluationResult
from rl_service.training.run import Run
from rl_service.training.train import train
from rl_service.training.trainer import EVALUATION_SEED_OFFSET
from tests.support.recorder import Recorder

pytestmark = pytest.mark.usefixtures("local_ray")


SEED = 7


class NaNScores(gym.Env[Any, Any]):
    """One step, whose reward is NaN in the episode that a policy is evaluated by."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._evaluated = seed == SEED + EVALUATION_SEED_OFFSET
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        reward = math.nan if self._evaluated else 1.0
        return self.observation_space.sample(), reward, True, False, {}


class Endless(gym.Env[Any, Any]):
    """Its episodes never end; sends SIGINT in the first evaluation if a folder is given.

    Args:
        folder: remembers whether it has.
    """

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, folder: str | None = None) -> None:
        self._sent = None if folder is None else Path(folder, "sent")
        self._evaluated = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._evaluated = seed == SEED + EVALUATION_SEED_OFFSET
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        if self._evaluated and self._sent is not None and not self._sent.exists():
            self._sent.touch()
            os.kill(os.getpid(), signal.SIGINT)
        return self.observation_space.sample(), 1.0, False, False, {}


def new_run(output_dir: Path, env: str, interval: int, **kwargs: Any) -> Run:
    settings = Settings(
        env=EnvSettings(id=env, kwargs=kwargs),
        model=MLPConfig(hidden_sizes=(8,), critic_hidden_sizes=(8,)),
        algorithm=PPOSettings(train_batch_size=32, minibatch_size=32, num_epochs=1),
        resources=ResourceSettings(num_env_runners=0, num_envs_per_env_runner=2),
        stop=StopSettings(iterations=1),
        evaluation=EvaluationSettings(
            interval=interval, num_episodes=1, final_num_episodes=1, max_episode_steps=30
        ),
        tracking=TrackingSettings(output_dir=str(output_dir), tensorboard=False),
        seed=SEED,
    )
    return Run.create(settings, command=[])


def scores(run: Run) -> dict[str, Any]:
    text = (run.bundle_path / "policy.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)["evaluation"]
    return found


def test_a_run_whose_first_episode_has_not_ended_leaves_a_policy_without_scores(
    tmp_path: Path,
) -> None:
    run = new_run(tmp_path, "Pendulum-v1", interval=0)
    result = train(run.settings, observer=Recorder(), run=run)
    assert (result.status, result.policy) == ("finished", str(run.bundle_path))
    assert scores(run) == {}


def test_an_evaluation_that_fails_is_told_and_keeps_no_policy(tmp_path: Path) -> None:
    run = new_run(tmp_path, f"{__name__}:NaNScores", interval=1)
    observer = Recorder()
    assert train(run.settings, observer=observer, run=run).status == "finished"
    [message] = observer.messages
    assert "the evaluation at iteration 1 has no score" in message
    seed = SEED + EVALUATION_SEED_OFFSET
    assert f"episode 0 of the evaluation, reset(seed={seed}), step 1: reward is nan" in message
    assert scores(run) == {}


def test_an_environment_that_never_ends_is_evaluated_up_to_a_limit(tmp_path: Path) -> None:
    run = new_run(tmp_path, f"{__name__}:Endless", interval=1)
    observer = Recorder()
    result = train(run.settings, observer=observer, run=run)
    assert (result.status, result.episodes, result.episode_return_mean) == ("finished", 1, 30.0)
    [row] = run.read_progress()
    assert row["evaluation/num_unfinished_episodes"] == 1
    [message] = observer.messages
    assert message.startswith("1 of 1 evaluated episodes had not ended after 30 env steps")
    assert "set env.max_episode_steps" in message
    assert scores(run)["num_unfinished_episodes"] == 1


def test_ctrl_c_ends_an_evaluation_at_once_and_a_resumed_run_makes_it_again(tmp_path: Path) -> None:
    run = new_run(tmp_path, f"{__name__}:Endless", interval=1, folder=str(tmp_path))
    changes = {"stop": StopSettings(iterations=2), "evaluation": _without_final(run.settings)}
    settings = run.settings.model_copy(update=changes)
    observer = Recorder()
    result = train(settings, observer=observer, run=run)
    assert (result.status, result.iterations) == ("stopped", 1)
    assert observer.messages == ["the evaluation was stopped; a resumed run repeats it"]
    assert [_EVALUATED in row for row in run.read_progress()] == [False]
    assert run.checkpoints.latest() is not None

    result = train(settings, observer=Recorder(), run=run)
    assert (result.status, result.episodes, result.iterations) == ("finished", 0, 2)
    assert [row.get(_EVALUATED) for row in run.read_progress()] == [30.0, 30.0]


_EVALUATED = "evaluation/episode_return_mean"


def _without_final(settings: Settings) -> EvaluationSettings:
    return settings.evaluation.model_copy(update={"final_num_episodes": 0})


def test_ctrl_c_in_the_final_evaluation_leaves_a_finished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path, "CartPole-v1", interval=0)
    load = training.load_bundle

    def load_and_interrupt(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return load(*arguments)

    monkeypatch.setattr(training, "load_bundle", load_and_interrupt)
    observer = Recorder()
    result = train(run.settings, observer=observer, run=run)
    assert (result.status, result.episodes, result.episode_return_mean) == ("finished", 0, None)
    assert "the final evaluation was interrupted" in observer.messages[0]


@pytest.fixture
def algorithm() -> Iterator[OnPolicyAlgorithm]:
    built = build_algorithm(
        Settings(
            env=EnvSettings(id="CartPole-v1"),
            model=MLPConfig(),
            resources=ResourceSettings(num_env_runners=0),
        )
    )
    yield built
    built.stop()


def test_of_equally_good_policies_the_latest_is_kept(
    tmp_path: Path, algorithm: OnPolicyAlgorithm
) -> None:
    best = BestPolicy(tmp_path / "bundle", "run", algorithm)
    bias = algorithm.learner_policy.net.actor.head.logits.bias
    for value in (1.0, 2.0):
        with torch.no_grad():
            bias.fill_(value)
        assert best.keep_if_better(evaluated(500.0))
    kept = load_bundle(tmp_path / "bundle").actor.state_dict()
    torch.testing.assert_close(kept["head.logits.bias"], torch.tensor([2.0, 2.0]))


def test_after_a_kill_only_a_better_policy_replaces_the_one_on_disk(
    tmp_path: Path, algorithm: OnPolicyAlgorithm
) -> None:
    run = new_run(tmp_path, "CartPole-v1", interval=1)
    best = BestPolicy(run.bundle_path, run.run_id, algorithm)
    assert not best.keep_if_better(evaluated(math.nan))
    assert not best.exists
    assert best.keep_if_better(evaluated(5.0))

    # Its checkpoint may be older than the bundle.
    resumed = BestPolicy(run.bundle_path, run.run_id, algorithm)
    assert not resumed.keep_if_better(evaluated(4.0))
    assert scores(run)["episode_return_mean"] == 5.0
    assert resumed.keep_if_better(evaluated(6.0))
    assert scores(run)["episode_return_mean"] == 6.0


def evaluated(episode_return: float) -> EvaluationResult:
    return EvaluationResult(np.array([episode_return]), np.array([1]))
