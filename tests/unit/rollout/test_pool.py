"""EnvPool as what steps the environments of a worker."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
from ray.rllib.policy.sample_batch import SampleBatch

from custom_models.history import History
from rl_service.common.errors import EnvError, TrainingFailedError
from rl_service.config.settings import EnvSettings
from rl_service.rollout.env_failures import not_finite
from rl_service.rollout.envs import make_env
from rl_service.rollout.fragments import LOSS_MASK
from rl_service.rollout.pool import PoolStepping, make_pool, try_pool
from rl_service.rollout.sampler import Acted, VectorSampler

STREAMS = [(7, 1, e) for e in range(3)]


def settings(env_id: str = "CartPole-v1", **changes: Any) -> EnvSettings:
    return EnvSettings(id=env_id, backend="envpool", **changes)


def build(env: EnvSettings, streams: list[tuple[int, int, int]] = STREAMS) -> PoolStepping:
    made = make_env(env)
    return PoolStepping(env, made.observation_space, made.action_space, streams)


def play(
    stepping: PoolStepping, num_steps: int, seed: int = 0
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Observations (T + 1, E, O) and ends (T, E) of random actions."""
    rng, everyone = np.random.default_rng(seed), range(stepping.num_envs)
    seen, ends = [stepping.reset(everyone)], []
    for _ in range(num_steps):
        stepped = stepping.step(slice(None), rng.integers(0, 2, stepping.num_envs))
        obs = stepped.obs.copy()
        over = np.flatnonzero(stepped.ended)
        if len(over):
            obs[over] = stepping.reset(over)
        seen.append(obs), ends.append(stepped.ended)
    return np.stack(seen), np.stack(ends)


def test_steps_are_those_of_gymnasium() -> None:
    stepping, env = build(settings()), gym.make("CartPole-v1").unwrapped
    [obs] = stepping.reset([1])
    env.reset(seed=0)
    env.state = obs.astype(np.float64)  # type: ignore[attr-defined]
    for _ in range(6):
        stepped = stepping.step(np.array([1]), np.array([1]))
        expected, reward, *_ = env.step(1)
        np.testing.assert_allclose(stepped.obs[0], expected, rtol=0, atol=1e-5)
        assert stepped.rewards.tolist() == [reward]
        assert (stepped.obs.dtype, stepped.rewards.dtype) == (np.float32, np.float32)
        assert not stepped.ended.any()


def test_envs_have_streams_of_their_own_that_repeat() -> None:
    first, ends = play(build(settings()), 200)
    again, _ = play(build(settings()), 200)
    assert np.array_equal(first, again)
    assert ends.sum() > 15
    [alone] = build(settings(), STREAMS[:1]).reset([0])
    assert np.array_equal(alone, first[0, 0])
    other_worker = build(settings(), [(7, 2, e) for e in range(3)]).reset(range(3))
    starts = np.concatenate([first[0], other_worker])
    assert len(np.unique(starts, axis=0)) == 6


def test_some_envs_may_step_without_the_others() -> None:
    together, apart = build(settings()), build(settings())
    together.reset(range(3)), apart.reset(range(3))
    whole = together.step(slice(None), np.array([0, 1, 0]))
    last, first = apart.step(np.array([2]), np.array([0])), apart.step([0, 1], np.array([0, 1]))
    assert np.array_equal(np.concatenate([first.obs, last.obs]), whole.obs)


def test_an_episode_ends_at_the_settings_limit_or_the_environments_own() -> None:
    stepping = build(settings("Pendulum-v1", max_episode_steps=3))
    stepping.reset(range(3))
    steps = [stepping.step(slice(None), np.zeros((3, 1), np.float32)) for _ in range(3)]
    assert [each.ended.tolist() for each in steps] == [[False] * 3, [False] * 3, [True] * 3]
    assert not steps[-1].terminated.any()
    stepping = build(settings("Pendulum-v1"))
    stepping.reset(range(3))
    ends = [stepping.step(slice(None), np.zeros((3, 1), np.float32)).ended for _ in range(200)]
    assert np.flatnonzero(np.all(ends, axis=1)).tolist() == [199]


def test_a_termination_in_the_step_of_the_limit_stays_one() -> None:
    stepping = build(settings())
    stepping.reset(range(3))
    lengths = []
    for t in range(1, 20):  # always to the right: it falls after about nine steps
        terminated = stepping.step(slice(None), np.ones(3, np.int64)).terminated
        lengths += [t] if terminated.any() else []
    stepping = build(settings(max_episode_steps=lengths[0]))
    stepping.reset(range(3))
    for _ in range(lengths[0]):
        last = stepping.step(slice(None), np.ones(3, np.int64))
    assert last.terminated.any()
    assert last.ended.all()


def test_what_is_hidden_and_observed_is_as_with_gymnasium() -> None:
    changes: dict[str, Any] = {"hide": (1, 3), "observe_reward": True}
    env = settings(**changes)
    stepping = build(env)
    [start, *_] = stepping.reset(range(3))
    assert (start[[1, 3, 4]].tolist(), start.shape) == ([0.0] * 3, (5,))
    obs = stepping.step(slice(None), np.zeros(3, np.int64)).obs
    assert obs[:, [1, 3, 4]].tolist() == [[0.0, 0.0, 1.0]] * 3
    assert obs.shape[1:] == make_env(env).observation_space.shape


def test_bounds_and_number_types_of_actions_are_the_environments() -> None:
    """HalfCheetah takes float64 and Pendulum -2 to 2, where policies act from -1 to 1."""
    stepping = build(settings("HalfCheetah-v4"))
    stepping.reset(range(3))
    assert stepping.step(slice(None), np.ones((3, 6), np.float32)).obs.dtype == np.float32
    pendulum, env = build(settings("Pendulum-v1")), gym.make("Pendulum-v1").unwrapped
    [obs] = pendulum.reset([0])
    env.reset(seed=0)
    env.state = np.array([np.arctan2(obs[1], obs[0]), obs[2]])  # type: ignore[attr-defined]
    expected = env.step(np.array([1.0], np.float32))
    stepped = pendulum.step(np.array([0]), np.array([[0.5]], np.float32))
    np.testing.assert_allclose(stepped.obs[0], expected[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(stepped.rewards[0], expected[1], rtol=0, atol=1e-5)


def test_numbers_that_are_not_finite_are_the_envs_fault() -> None:
    stepping = build(settings("Pendulum-v1", max_failed_episodes=1))
    stepping.reset(range(3))
    stepping.step(slice(None), np.zeros((3, 1), np.float32))
    stepped = stepping.step(slice(None), np.array([[0.0], [np.nan], [0.0]], np.float32))
    assert stepped.errors == {1: not_finite(stepped.obs[1])}
    stepping.fail(1, stepped.errors[1])
    [failure] = stepping.pop_failures()
    assert (failure.worker_index, failure.env_index, failure.step) == (1, 1, 2)
    assert "observation has NaN at index 0 (episode 0 of a pool's env)" in str(failure)
    assert np.isfinite(stepping.reset([1])).all()
    with pytest.raises(TrainingFailedError, match=r"max_failed_episodes=1"):
        stepping.fail(1, "again")


def sampler_of(stepping: PoolStepping) -> VectorSampler:
    rng = np.random.default_rng(0)

    def act(history: History, masks: Any) -> Acted:
        num_envs = len(history.obs)
        return Acted(rng.integers(0, 2, num_envs), np.zeros((num_envs, 2), np.float32), None)

    return VectorSampler(
        stepping,
        lambda num_actions: act,
        num_context_steps=0,
        acting_context_length=1,
        obs_filter=None,
        return_scaler=None,
        worker_index=1,
    )


def test_a_sampler_gets_whole_episodes() -> None:
    sampler = sampler_of(build(settings(max_episode_steps=30)))
    columns, episodes = sampler.sample(300), sampler.pop_episodes()
    assert columns[LOSS_MASK].sum() == 900
    assert len(episodes) > 20
    assert all(each.length == each.episode_return <= 30 for each in episodes)
    assert any(each.length == 30 for each in episodes)
    steps = columns[LOSS_MASK]
    assert columns[SampleBatch.TERMINATEDS][steps].sum() < len(episodes)


def test_a_resumed_sampler_starts_new_episodes() -> None:
    first = sampler_of(build(settings()))
    before = first.sample(50)
    state = first.state()
    assert min(env["episode"] for env in state["envs"]) > 0
    resumed = sampler_of(build(settings()))
    assert resumed.restore(state) == [0, 1, 2]
    after = resumed.sample(50)
    starts = [columns[SampleBatch.OBS][columns[SampleBatch.T] == 0] for columns in (before, after)]
    both = np.concatenate(starts)
    assert len(np.unique(both, axis=0)) == len(both)
    later = [env["episode"] for env in resumed.state()["envs"]]
    assert min(later) > max(env["episode"] for env in state["envs"])


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (settings("CartPoleNoVel-v1"), "EnvPool has no environment CartPoleNoVel-v1; leave env"),
        (settings("my.envs:Maze"), "EnvPool has no environment my.envs:Maze; leave env"),
        (settings(kwargs={"gravity": 3.0}), r"EnvPool cannot make CartPole-v1: .*gravity"),
    ],
)
def test_what_envpool_lacks_is_an_error(env: EnvSettings, message: str) -> None:
    space = gym.spaces.Box(-1.0, 1.0, (4,))
    with pytest.raises(EnvError, match=message):
        try_pool(env, space, gym.spaces.Discrete(2))


def test_without_envpool_the_message_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(EnvError, match=r"pip install 'rl-service\[envpool\]'"):
        make_pool(settings(), [1])


@pytest.mark.parametrize("env_id", ["CartPole-v1", "LunarLander-v2", "HalfCheetah-v4"])
def test_a_pool_is_tried_before_a_run(env_id: str) -> None:
    env = settings(env_id)
    made = make_env(env)
    assert isinstance(made.observation_space, gym.spaces.Box)
    try_pool(env, made.observation_space, made.action_space)
    larger = gym.spaces.Box(-1.0, 1.0, (99,))
    with pytest.raises(EnvError, match="gymnasium's 99; leave env"):
        try_pool(env, larger, made.action_space)
