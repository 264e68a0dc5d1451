"""Evaluation: known returns, the seed protocol, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_service.common.errors import EnvError, SettingsError
from rl_service.config.settings import EnvSettings
from rl_service.policies import BundledPolicy, load_bundle
from rl_service.rollout.envs import make_env
from rl_service.training import evaluation
from rl_service.training.evaluation import NUM_PARALLEL_ENVS, EvaluationResult, evaluate
from tests.conftest import WriteTestBundle
from tests.support.serving import write_for_spaces

COUNTDOWN = EnvSettings(id=f"{__name__}:Countdown")


class Countdown(gym.Env[Any, Any]):
    """Lasts 1 + (seed modulo 7) steps; step t pays t, starting from 1."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        assert seed is not None, "every episode has a seed of its own"
        self.left, self.time = 1 + seed % 7, 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        self.time += 1
        return np.zeros(4, np.float32), float(self.time), self.left == 0, False, {}


@pytest.fixture
def cartpole(tmp_path: Path, write_test_bundle: WriteTestBundle) -> BundledPolicy:
    write_test_bundle(tmp_path / "cartpole", "CartPole-v1")
    return load_bundle(tmp_path / "cartpole")


def test_returns_and_lengths_come_in_the_order_of_the_seeds(cartpole: BundledPolicy) -> None:
    num_episodes = 3 * NUM_PARALLEL_ENVS + 1  # episodes of unequal length change places in the envs
    result = evaluate(cartpole, COUNTDOWN, num_episodes=num_episodes, seed=5)
    lengths = [1 + (5 + i) % 7 for i in range(num_episodes)]
    assert result.lengths.tolist() == lengths
    assert result.returns.tolist() == [n * (n + 1) / 2 for n in lengths]


def test_episode_i_equals_an_episode_played_alone_from_seed_plus_i(
    cartpole: BundledPolicy,
) -> None:
    env = make_env(EnvSettings(id="CartPole-v1"))
    expected = []
    for i in range(20):
        obs, _ = env.reset(seed=100 + i)
        length, over = 0, False
        while not over:
            action = cartpole.act(obs[None], deterministic=True).env_actions[0]
            obs, _, terminated, truncated, _ = env.step(action)
            length, over = length + 1, terminated or truncated
        expected.append(length)
    env.close()
    result = evaluate(cartpole, EnvSettings(id="CartPole-v1"), num_episodes=20, seed=100)
    assert result.lengths.tolist() == expected
    assert result.returns.tolist() == expected


def test_the_time_limit_of_the_settings_ends_an_episode(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "b", "Pendulum-v1", max_episode_steps=13)
    policy = load_bundle(tmp_path / "b")
    result = evaluate(policy, policy.spec.env, num_episodes=2, seed=0)
    assert result.lengths.tolist() == [13, 13]


class Endless(Countdown):
    """Countdown whose episodes of an odd seed never end."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, *rest = super().step(action)
        return obs, reward, terminated and not self.odd, *rest  # type: ignore[return-value]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        assert seed is not None
        self.odd = bool(seed % 2)
        return super().reset(seed=seed)


def test_an_episode_that_never_ends_is_cut_off_and_marked(
    cartpole: BundledPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "_FIRST_REPORT_S", 0.0)
    messages: list[str] = []
    result = evaluate(
        cartpole,
        EnvSettings(id=f"{__name__}:Endless"),
        num_episodes=4,
        seed=3,
        max_episode_steps=5,
        on_message=messages.append,
    )
    assert result.lengths.tolist() == [5] * 4
    assert result.returns.tolist() == [15.0] * 4
    assert result.unfinished == {0, 2, 3}  # the other one ends by itself in that step
    text = result.cut_off_text(5, "raise the limit")
    assert text is not None
    assert text.startswith("3 of 4 evaluated episodes had not ended after 5 env steps")
    assert text.endswith("; raise the limit")
    assert messages[0] == "evaluating: 0 of 4 episodes done, 4 env steps so far"


def test_a_stochastic_evaluation_is_reproducible_and_differs_from_the_deterministic(
    cartpole: BundledPolicy,
) -> None:
    def returns(**options: bool) -> list[float]:
        env = EnvSettings(id="CartPole-v1")
        return evaluate(cartpole, env, num_episodes=8, seed=1, **options).returns.tolist()

    assert returns(deterministic=False) == returns(deterministic=False)
    assert returns(deterministic=False) != returns()


def test_statistics_of_known_returns() -> None:
    result = EvaluationResult(np.array([1.0, 2.0, 3.0, 6.0]), np.array([1, 1, 1, 1]))
    assert (result.mean, result.min, result.max) == (3.0, 1.0, 6.0)
    assert result.std == pytest.approx(3.5**0.5)
    assert result.running_mean(2).tolist() == [1.0, 1.5, 2.5, 4.5]
    assert result.running_mean(50).tolist() == [1.0, 1.5, 2.0, 3.0]


@pytest.mark.parametrize(("num_episodes", "seed"), [(0, 0), (-1, 0), (1, -1)])
def test_no_episodes_or_a_negative_seed_is_refused(
    cartpole: BundledPolicy, num_episodes: int, seed: int
) -> None:
    with pytest.raises(SettingsError, match="at least 1 episode and a seed from 0"):
        evaluate(cartpole, COUNTDOWN, num_episodes=num_episodes, seed=seed)


@pytest.mark.parametrize(
    ("env_id", "problem"),
    [
        ("Pendulum-v1", r"observations of shape \(3,\) but the policy reads \(4,\)"),
        (f"{__name__}:ThreeActions", r"has actions Discrete\(3\) but the policy has 2 discrete"),
        ("CartPole-v7", "CartPole-v7 is unknown"),
    ],
)
def test_an_environment_that_does_not_fit_the_policy_is_refused(
    cartpole: BundledPolicy, env_id: str, problem: str
) -> None:
    with pytest.raises(EnvError, match=problem):
        evaluate(cartpole, EnvSettings(id=env_id), num_episodes=1, seed=0)


class ThreeActions(Countdown):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.Discrete(3)


class Stumbling(Countdown):
    """Fails in the episode of seed 8, in its reset (step 0) or a later step."""

    def __init__(self, step: int, reward: float | None, obs: float = 0.0) -> None:
        super().__init__()
        self.fault = step, reward, obs

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed=seed)
        self.seed = seed
        return self._stumble(obs, 0.0)[0], info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, *rest = super().step(action)
        return *self._stumble(obs, reward), *rest  # type: ignore[return-value]

    def _stumble(self, obs: Any, paid: float) -> tuple[Any, float]:
        step, reward, value = self.fault
        if (self.seed, self.time) != (8, step):
            return obs, paid
        if reward is None:
            raise RuntimeError("the motor is stuck")
        return np.array([0, 0, value, 0], np.float32), reward


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ({"step": 0, "reward": None}, "step 0: RuntimeError: the motor is stuck"),
        ({"step": 2, "reward": None}, "step 2: RuntimeError: the motor is stuck"),
        ({"step": 0, "reward": 0.0, "obs": np.nan}, "step 0: observation has NaN at index 2"),
        ({"step": 1, "reward": 0.0, "obs": np.inf}, "step 1: observation has inf at index 2"),
        ({"step": 2, "reward": np.nan}, "step 2: reward is nan"),
    ],
)
def test_an_environment_that_fails_is_told_with_the_episode_and_its_step(
    cartpole: BundledPolicy, fault: dict[str, Any], problem: str
) -> None:
    env = EnvSettings(id=f"{__name__}:Stumbling", kwargs=fault)
    with pytest.raises(EnvError) as caught:
        evaluate(cartpole, env, num_episodes=6, seed=5)
    assert str(caught.value) == (
        f"environment {env.id} failed in episode 3 of the evaluation, reset(seed=8), {problem}; "
        f"a score needs all episodes: fix the environment"
    )


def test_a_row_of_the_same_length_is_not_the_same_observation(tmp_path: Path) -> None:
    parts = gym.spaces.Dict({"a": gym.spaces.Discrete(2), "b": gym.spaces.Box(-1, 1, (2,))})
    write_for_spaces(tmp_path / "b", parts, gym.spaces.Discrete(2))
    with pytest.raises(EnvError, match=r"CartPole-v1 has .* but the policy reads an object of"):
        evaluate(load_bundle(tmp_path / "b"), EnvSettings(id="CartPole-v1"), num_episodes=1, seed=0)
