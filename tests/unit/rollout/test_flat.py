"""Observations of any space as flat rows, and action masks on their way to the policy."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
from gymnasium import spaces

from custom_models.history import History
from rl_service.common.errors import EnvError, TrainingFailedError
from rl_service.config.settings import EnvSettings
from rl_service.rollout.envs import make_env, raw_observation_space, try_env
from rl_service.rollout.episodes import SeededEpisodes
from rl_service.rollout.sampler import Acted, VectorSampler
from rl_service.rollout.stepping import GymStepping
from tests.support.locks import MASK, IllegalAction, Locks

LOCKS = "tests.support.locks:Locks"
HERE = __name__
SPACES = {
    "Discrete": spaces.Discrete(5, start=-1),
    "MultiDiscrete": spaces.MultiDiscrete([[2, 3], [1, 4]]),
    "MultiBinary": spaces.MultiBinary((2, 2)),
    "float64": spaces.Box(-1, 1, (2, 3), np.float64),
    "Dict": spaces.Dict(
        {
            "z": spaces.Tuple((spaces.Discrete(3), spaces.Dict({"b": spaces.MultiBinary(2)}))),
            "a": spaces.Box(0, 255, (3,), np.uint8),
        }
    ),
}


class Samples(gym.Env[Any, Any]):
    """Observes what a space samples."""

    action_space = spaces.Discrete(2)

    def __init__(self, name: str = "Dict", image: bool = False) -> None:
        space = spaces.Dict({"i": spaces.Box(0, 255, (4, 4, 3), np.uint8)})
        self.observation_space: Any = space if image else SPACES[name]
        self.shown: list[Any] = []

    def _sample(self) -> Any:
        self.shown.append(self.observation_space.sample())
        return self.shown[-1]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.observation_space.seed(seed)
        return self._sample(), {}

    def step(self, action: Any) -> Any:
        return self._sample(), 0.0, False, False, {}


@pytest.mark.parametrize("name", SPACES)
def test_observations_are_flattened_as_gymnasium_does(name: str) -> None:
    with closing(make_env(EnvSettings(id=f"{HERE}:Samples", kwargs={"name": name}))) as env:
        rows = [env.reset(seed=1)[0], *(env.step(0)[0] for _ in range(20))]
        space, shown = SPACES[name], env.unwrapped.shown  # type: ignore[attr-defined]
        assert raw_observation_space(env).__class__ is space.__class__
        for row, obs in zip(rows, shown, strict=True):
            assert row.dtype == np.float32 and env.observation_space.contains(row)
            expected = np.asarray(spaces.flatten(space, obs), np.float32).reshape(-1)
            assert np.array_equal(row, expected)


def test_images_are_flattened_only_if_that_is_asked_for() -> None:
    env = EnvSettings(id=f"{HERE}:Samples", kwargs={"image": True}, flatten_images=True)
    space, _ = try_env(env)
    assert space.shape == (48,)


@pytest.mark.parametrize(
    ("env_id", "size"),
    [("FrozenLake-v1", 16), ("Taxi-v3", 500), ("CliffWalking-v1", 48), ("Blackjack-v1", 45)],
)
def test_the_toy_text_environments_can_be_read(env_id: str, size: int) -> None:
    space, action_space = try_env(EnvSettings(id=env_id, max_episode_steps=100))
    assert space.shape == (size,)
    assert isinstance(action_space, spaces.Discrete)


class MasksAlone(Samples):
    """Observes nothing but a mask; its actions may be numbers, which no mask fits."""

    def __init__(self, extra: bool = False) -> None:
        parts: dict[str, Any] = {"action_mask": spaces.MultiBinary(2)}
        self.observation_space = spaces.Dict(parts | ({"x": spaces.Discrete(2)} if extra else {}))
        self.shown = []
        self.action_space = spaces.Box(-1, 1, (1,)) if extra else spaces.Discrete(2)  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("extra", "problem"),
    [(False, "nothing but its action mask"), (True, "set env.action_masks=false")],
)
def test_a_mask_without_observations_or_choices_is_refused(extra: bool, problem: str) -> None:
    env = EnvSettings(id=f"{HERE}:MasksAlone", kwargs={"extra": extra}, max_episode_steps=9)
    with pytest.raises(EnvError, match=problem):
        try_env(env)


@pytest.mark.parametrize("mask", ["obs", "info"])
def test_a_mask_is_in_the_info_and_not_in_the_observation(mask: str) -> None:
    with closing(make_env(EnvSettings(id=LOCKS, kwargs={"mask": mask}))) as env:
        obs, info = env.reset(seed=3)
        assert obs.shape == (3 + 5 + 2 + 4,)
        assert MASK.contains(info["action_mask"])
        assert "action_mask" in env.step(np.array([obs[-4:].argmax(), 0, 0, 0]))[4]
        is_described = "action_mask" in raw_observation_space(env).spaces  # type: ignore[attr-defined]
        assert is_described == (mask == "obs")
    without = EnvSettings(id=LOCKS, kwargs={"mask": mask}, action_masks=False)
    with closing(make_env(without)) as env:
        assert "action_mask" not in env.reset(seed=3)[1]
        assert env.reset(seed=3)[0].shape == obs.shape


class Recorded(list[Any]):
    """The masks that a policy was given; it takes the first action that is allowed."""

    def __call__(self, history: History, masks: npt.NDArray[np.bool_] | None) -> Acted:
        assert masks is not None
        self.append(masks.copy())
        first = [part.argmax(1) for part in np.split(masks, [4, 6, 8], axis=1)]
        logits = np.where(masks, 0.0, -1e30).astype(np.float32)
        return Acted(np.stack(first, axis=1), logits, None)


def sampler_of(policy: Any, num_envs: int = 2, failures: int = 0, **kwargs: Any) -> VectorSampler:
    settings = EnvSettings(id=LOCKS, kwargs=kwargs)
    envs = [SeededEpisodes(lambda: make_env(settings), 7, 1, e) for e in range(num_envs)]
    return VectorSampler(
        GymStepping(envs, failures),
        lambda num_actions: policy,
        num_context_steps=0,
        acting_context_length=1,
        obs_filter=None,
        return_scaler=None,
        worker_index=1,
    )


@pytest.mark.parametrize("mask", ["obs", "info"])
def test_the_policy_gets_the_mask_of_each_step_and_env(mask: str) -> None:
    policy = Recorded()
    columns = sampler_of(policy, mask=mask).sample(45)  # two episodes of 20 steps, and a part
    steps = columns["loss_mask"]
    wheel = columns["obs"][steps][:, -4:].argmax(1)  # the parts of a Dict come by name
    expected = np.ones((90, 10), np.bool_)
    expected[np.arange(90), (wheel + 1) % 4] = expected[:, 9] = False
    assert np.array_equal(columns["action_dist_inputs"][steps] == 0.0, expected)
    given = np.stack(policy, axis=1).reshape(90, 10)
    assert np.array_equal(given, expected)
    assert np.array_equal(columns["actions"][steps][:, 0], (wheel == 3).astype(int))


def test_a_state_brings_the_masks_back() -> None:
    whole = sampler_of(Recorded())
    whole.sample(9)
    state = whole.state()
    policy = Recorded()
    resumed = sampler_of(policy)
    assert resumed.restore(state) == []
    actual, expected = resumed.sample(30), whole.sample(30)
    assert all(np.array_equal(actual[name], expected[name]) for name in expected)
    assert not policy[0].all()


@pytest.mark.parametrize(
    ("fault", "problem"), [("short", "has 9 entries"), ("all zero", "allows no action")]
)
def test_a_mask_that_does_not_fit_is_a_failure_of_the_environment(fault: str, problem: str) -> None:
    with pytest.raises(TrainingFailedError, match=problem):
        sampler_of(Recorded(), fault=fault).sample(3)


def test_an_environment_without_masks_costs_no_masks() -> None:
    def act(history: History, masks: Any) -> Acted:
        assert masks is None
        return Acted(np.zeros((2, 4), np.int64), np.zeros((2, 10), np.float32), None)

    sampler_of(act, mask="none").sample(5)


def test_the_environment_itself_refuses_what_it_forbids() -> None:
    env = Locks()
    obs, _ = env.reset(seed=0)
    with pytest.raises(IllegalAction):
        env.step(np.array([int(obs["action_mask"].argmin()), 0, 0, 0]))
