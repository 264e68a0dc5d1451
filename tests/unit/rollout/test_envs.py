"""Environments as the nets read them, and what is said of those that they cannot."""

from __future__ import annotations

import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_service.common.errors import EnvError
from rl_service.config.presets import resolve_env_id
from rl_service.config.settings import EnvSettings
from rl_service.rollout.envs import make_env, try_env
from tests.support.environments import ENVIRONMENTS, env_spaces

HERE = __name__


class GridEnv(gym.Env[Any, Any]):
    """Observations are a 2 x 3 grid of float64; the action space and reward do not matter."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - gymnasium's type
    action_space = gym.spaces.Discrete(2)

    def __init__(self, value: float = 1.0, render_mode: str | None = None) -> None:
        self.value = value
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2, 3), np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.arange(6.0).reshape(2, 3) * self.value, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.full((2, 3), self.value), 1.0, False, False, {}


class DictEnv(GridEnv):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Dict(
            {"a": gym.spaces.Graph(self.observation_space, None)}
        )


class TupleActionEnv(GridEnv):
    action_space = gym.spaces.Tuple([gym.spaces.Discrete(2)])  # type: ignore[assignment]


class BrokenEnv(GridEnv):
    def __init__(self) -> None:
        raise RuntimeError("no licence\nfor this simulator")


def not_an_env() -> gym.Env[Any, Any]:
    return 3  # type: ignore[return-value]


def problem(env_id: str, **kwargs: Any) -> str:
    with pytest.raises(EnvError) as caught:
        make_env(EnvSettings(id=env_id, **kwargs))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("env_id", "observation_size", "action_space"),
    [
        ("CartPole-v1", 4, gym.spaces.Discrete(2)),
        ("Acrobot-v1", 6, gym.spaces.Discrete(3)),
        ("LunarLander-v3", 8, gym.spaces.Discrete(4)),
        ("BipedalWalker-v3", 24, gym.spaces.Box(-1, 1, (4,))),
        ("Pendulum-v1", 3, gym.spaces.Box(-2, 2, (1,))),
        ("HalfCheetah-v4", 17, gym.spaces.Box(-1, 1, (6,))),
        ("Walker2d-v4", 17, gym.spaces.Box(-1, 1, (6,))),
    ],
)
def test_each_of_the_seven_environments_gives_flat_float32_observations(
    env_id: str, observation_size: int, action_space: gym.Space[Any]
) -> None:
    with closing(make_env(EnvSettings(id=env_id))) as env:
        obs, _ = env.reset(seed=0)
        next_obs, *_ = env.step(env.action_space.sample())
    assert env.observation_space.shape == (observation_size,)
    assert env.action_space == action_space
    for observation in (obs, next_obs):
        assert observation.dtype == np.float32
        assert observation.shape == (observation_size,)


def test_an_environment_of_the_users_module_is_made_with_its_arguments_and_flattened() -> None:
    with closing(make_env(EnvSettings(id=f"{HERE}:GridEnv", kwargs={"value": 2.0}))) as env:
        obs, _ = env.reset()
    np.testing.assert_array_equal(obs, np.array([0, 2, 4, 6, 8, 10], np.float32))


def test_the_render_mode_reaches_an_environment_of_the_users_module() -> None:
    with closing(make_env(EnvSettings(id=f"{HERE}:GridEnv"), render_mode="rgb_array")) as env:
        assert env.render_mode == "rgb_array"


class UndrawnEnv(GridEnv):
    def __init__(self) -> None:
        super().__init__()


gym.register("Undrawn-v0", entry_point=UndrawnEnv)


@pytest.mark.parametrize("env_id", ["Undrawn-v0", f"{HERE}:UndrawnEnv", f"{HERE}:Undrawn-v0"])
def test_an_environment_need_not_know_of_drawing(env_id: str) -> None:
    with closing(make_env(EnvSettings(id=env_id))) as env:
        assert env.reset(seed=1)[0].shape == (6,)


@pytest.mark.parametrize("env_id", ["CartPole-v1", f"{HERE}:GridEnv"])
def test_an_episode_is_truncated_at_the_settings_limit(env_id: str) -> None:
    with closing(make_env(EnvSettings(id=env_id, max_episode_steps=3))) as env:
        env.reset(seed=0)
        ends = [env.step(i % 2)[2:4] for i in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]


def test_without_a_limit_in_the_settings_the_environments_own_holds() -> None:
    with closing(make_env(EnvSettings(id="Pendulum-v1"))) as env:
        env.reset(seed=0)
        steps = 1
        while not env.step(np.zeros(1, np.float32))[3]:
            steps += 1
    assert steps == 200


def test_env_spaces_are_those_of_the_flattened_environment() -> None:
    observation_space, action_space = env_spaces(EnvSettings(id=f"{HERE}:GridEnv"))
    assert observation_space == gym.spaces.Box(-np.inf, np.inf, (6,), np.float32)
    assert action_space == gym.spaces.Discrete(2)


def test_an_id_that_gymnasium_dropped_leads_to_its_successor_with_a_note() -> None:
    env_id, note = resolve_env_id("LunarLander-v2")
    assert env_id == "LunarLander-v3"
    assert note is not None and "LunarLander-v2" in note
    assert resolve_env_id("CartPole-v1") == ("CartPole-v1", None)


def test_making_a_v4_environment_warns_of_nothing_and_leaves_no_file(in_tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_env(EnvSettings(id="Walker2d-v4")).close()
    assert list(in_tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("env_id", "nearest"),
    [
        ("LunrLander-v3", "LunarLander-v3"),
        ("cartpole-v1", "CartPole-v1"),
        ("Walker2D-v4", "Walker2d-v4"),
        (f"{HERE}:GirdEnv", "GridEnv"),
    ],
)
def test_an_unknown_environment_names_the_nearest(env_id: str, nearest: str) -> None:
    assert problem(env_id).endswith(f"did you mean {nearest}?")


@pytest.mark.parametrize(
    ("env_id", "reason"),
    [
        (f"{HERE}:DictEnv", "Graph"),
        ("CarRacing-v3", "is an image"),
        (f"{HERE}:TupleActionEnv", "action space Tuple(Discrete(2)) is not supported"),
        (f"{HERE}:BrokenEnv", "no licence for this simulator"),
        (f"{HERE}:not_an_env", "it returned int, not a gymnasium.Env"),
        ("no_such_module:Env", "module no_such_module cannot be imported"),
        ("qqq", "give a gymnasium id or module:Class"),
    ],
)
def test_an_environment_that_cannot_be_used_is_refused_with_the_reason(
    env_id: str, reason: str
) -> None:
    message = problem(env_id)
    assert env_id in message
    assert reason in message


class FourTupleEnv(GridEnv):
    def step(self, action: Any) -> Any:
        return super().step(action)[:4]


class ObservationAloneEnv(GridEnv):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0]


class NoSeedEnv(GridEnv):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class RewardEnv(GridEnv):
    """Pays whatever it is given."""

    def __init__(self, reward: Any) -> None:
        super().__init__()
        self.reward = reward

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, self.reward, *rest


class BoundedEnv(GridEnv):
    """Steps to an observation of all `value`; its space is from -5 to 5."""

    def __init__(self, value: float = 1.0) -> None:
        super().__init__(value)
        self.observation_space = gym.spaces.Box(-5.0, 5.0, (2, 3), np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros((2, 3)), {}


class ShortEnv(GridEnv):
    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return obs[0], *rest


@pytest.mark.parametrize(
    ("name", "kwargs", "problem"),
    [
        ("FourTupleEnv", {}, "its first step: ValueError: not enough values to unpack (expected 5"),
        ("ObservationAloneEnv", {}, "reset(seed=0): observation has the shape (3,) instead of"),
        ("NoSeedEnv", {}, "reset(seed=0): TypeError: NoSeedEnv.reset() got an unexpected keyword"),
        ("RewardEnv", {"reward": None}, "its first step: reward is None, not a number"),
        ("RewardEnv", {"reward": "1.0"}, "its first step: reward is '1.0', not a number"),
        ("RewardEnv", {"reward": [1.0]}, "its first step: reward is [1.0], not a number"),
        ("RewardEnv", {"reward": float("nan")}, "its first step: reward is nan"),
        (
            "BoundedEnv",
            {"value": 5.5},
            "its first step: observation has 5.5 at index 0, and its observation_space is from -5 "
            "to 5 there",
        ),
        ("ShortEnv", {}, "its first step: observation has the shape (3,) instead of (6,)"),
    ],
)
def test_what_fails_in_every_episode_is_one_line_before_the_first(
    name: str, kwargs: dict[str, Any], problem: str
) -> None:
    env = EnvSettings(id=f"{HERE}:{name}", kwargs=kwargs)
    make_env(env).close()
    with pytest.raises(EnvError) as caught:
        try_env(env)
    message = str(caught.value)
    assert message.startswith(f"environment {HERE}:{name} cannot be used: {problem}")
    assert message.endswith("reward, terminated, truncated, info), as in gymnasium 1")
    assert "\n" not in message


@pytest.mark.parametrize("env_id", [*ENVIRONMENTS, f"{HERE}:BoundedEnv", "MountainCar-v0"])
def test_environments_that_keep_to_the_interface_may_be_used(env_id: str) -> None:
    env = EnvSettings(id=env_id)
    assert try_env(env) == env_spaces(env)


@pytest.mark.parametrize("reward", [1, True, np.float32(0.5), np.array(2.0)])
def test_any_number_is_a_reward(reward: Any) -> None:
    try_env(EnvSettings(id=f"{HERE}:RewardEnv", kwargs={"reward": reward}))


def test_an_argument_that_the_environment_does_not_take_is_refused() -> None:
    assert "check env.kwargs" in problem("CartPole-v1", kwargs={"gravty": 1.0})
