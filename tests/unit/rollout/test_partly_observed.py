"""Environments that ask for memory: what is hidden, what stays, and the recall task's returns."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from custom_models.configs import GPT2CriticConfig
from custom_models.history import History
from rl_service.common.errors import EnvError, ObservationError
from rl_service.config.settings import EnvSettings
from rl_service.policies import load_bundle
from rl_service.policies.runner import critic_of
from rl_service.rollout.envs import make_env, raw_observation_space, try_env
from rl_service.rollout.partly_observed import VELOCITIES
from tests.conftest import WriteTestBundle


def name_of(env_id: str) -> str:
    name, _, version = env_id.rpartition("-")
    return f"{name}NoVel-{version}"


@pytest.mark.parametrize("env_id", VELOCITIES)
def test_only_the_velocities_are_hidden(env_id: str) -> None:
    settings = EnvSettings(id=name_of(env_id))
    with closing(make_env(EnvSettings(id=env_id))) as whole, closing(make_env(settings)) as masked:
        assert try_env(settings)[0].shape == whole.observation_space.shape
        masked.action_space.seed(0)
        seen, expected = [masked.reset(seed=1)[0]], [whole.reset(seed=1)[0]]
        for _ in range(5):
            action = masked.action_space.sample()
            obs, reward, *ended = masked.step(action)
            full, same_reward, *same_ended = whole.step(action)
            assert (reward, ended[:2]) == (same_reward, same_ended[:2])
            seen.append(obs)
            expected.append(full)
    hidden = list(VELOCITIES[env_id])
    assert np.abs(np.array(expected)[:, hidden]).max() > 1e-3
    left = np.array(expected, np.float32)
    left[:, hidden] = 0.0
    np.testing.assert_array_equal(np.array(seen), left)


@pytest.mark.parametrize(("limit", "expected"), [(None, 500), (20, 20), (700, 700)])
def test_the_time_limit_is_that_of_the_environment_or_of_the_settings(
    limit: int | None, expected: int
) -> None:
    with closing(make_env(EnvSettings(id="CartPoleNoVel-v1", max_episode_steps=limit))) as env:
        assert env.get_wrapper_attr("_max_episode_steps") == expected


def test_entries_of_any_environment_can_be_hidden() -> None:
    settings = EnvSettings(id="LunarLander-v3", hide=(0, 6))
    with closing(make_env(settings)) as env:
        assert isinstance(env.observation_space, gym.spaces.Box)
        assert env.observation_space.shape == (8,)
        obs = np.array([env.reset(seed=seed)[0] for seed in range(3)])
        assert raw_observation_space(env).shape == (8,)
    assert not obs[:, [0, 6]].any()
    assert (obs[:, [1, 2, 3, 4, 5]] != 0).all()
    assert try_env(settings)[0].shape == (8,)


def test_an_entry_that_is_not_there_is_refused() -> None:
    with pytest.raises(EnvError, match=r"env.hide=\[1, 4\].*they have 4, from 0 to 3"):
        make_env(EnvSettings(id="CartPole-v1", hide=(1, 4)))


def test_a_loaded_policy_and_its_critic_never_see_what_was_hidden(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    """A client sends what its sensors give."""
    model = GPT2CriticConfig(context_length=3, n_head=2, n_embd=8)
    write_test_bundle(tmp_path / "b", "CartPole-v1", model=model, filtered=True, hide=(1, 3))
    policy = load_bundle(tmp_path / "b")
    obs = np.array([[0.1, 0.7, -0.1, 0.9]], np.float32)
    other = obs + np.array([[0.0, 1.0, 0.0, -2.0]], np.float32)
    seen = obs + np.array([[1.0, 0.0, 0.0, 0.0]], np.float32)
    first, same, different = (policy.act(each, deterministic=True) for each in (obs, other, seen))
    np.testing.assert_array_equal(first.dist_inputs, same.dist_inputs)
    assert np.abs(first.dist_inputs - different.dist_inputs).max() > 1e-6
    critic, spec = critic_of(tmp_path / "b"), policy.spec.action_spec
    of = [History.first_steps(each, 3, spec) for each in (obs, other, seen)]
    values = [critic.values(history, np.zeros(1, np.int64)) for history in of]
    assert values[0] == values[1] != values[2]


@pytest.mark.parametrize("delay", [1, 10, 40])
def test_recall_rewards_the_cue_of_the_first_step_alone(delay: int) -> None:
    with closing(make_env(EnvSettings(id="Recall-v0", kwargs={"delay": delay}))) as env:
        cues = set()
        for seed in range(20):
            obs, _ = env.reset(seed=seed)
            cue = float(obs[0])
            cues.add(cue)
            assert obs[1] == 0.0
            for step in range(1, delay + 1):
                obs, reward, terminated, truncated, _ = env.step(np.int64(seed % 2))
                assert (reward, terminated, truncated) == (0.0, False, False)
                assert obs.tolist() == [0.0, float(step == delay)]
            right = np.int64(cue > 0)
            answer = right if seed % 3 else 1 - right
            _, reward, terminated, _, _ = env.step(answer)
            assert terminated
            assert reward == (1.0 if answer == right else -1.0)
    assert cues == {-1.0, 1.0}


def test_the_reward_may_be_a_part_of_the_observation() -> None:
    settings = EnvSettings(id="Pendulum-v1", hide=(2,), observe_reward=True, max_episode_steps=5)
    try_env(settings)
    with (
        closing(make_env(settings)) as env,
        closing(make_env(EnvSettings(id="Pendulum-v1"))) as plain,
    ):
        assert raw_observation_space(env).shape == (4,)
        for seed in (1, 2):
            obs, _ = env.reset(seed=seed)
            whole, _ = plain.reset(seed=seed)
            assert obs.tolist() == [*whole[:2], 0.0, 0.0]
            for _ in range(5):
                action = np.array([0.7], np.float32)
                obs, reward, *_ = env.step(action)
                whole, expected, *_ = plain.step(action)
                assert reward == expected
                assert obs.tolist() == [*whole[:2], 0.0, np.float32(expected)]
                assert env.observation_space.contains(obs)


def test_a_recall_without_a_delay_is_refused() -> None:
    with pytest.raises(EnvError, match="delay=0 leaves nothing to remember"):
        make_env(EnvSettings(id="Recall-v0", kwargs={"delay": 0}))


@pytest.mark.parametrize("actor_net", ["stack", "gpt2"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_an_actor_reads_a_history_of_any_number_type_and_refuses_actions_that_are_none(
    actor_net: Any, env_id: str, tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    model = GPT2CriticConfig(
        actor_net=actor_net, actor_context_length=3, history_actions=True, n_embd=16, n_head=2
    )
    net = write_test_bundle(tmp_path / "b", env_id, model=model)
    policy = load_bundle(tmp_path / "b")
    obs = np.linspace(-0.5, 0.5, 3 * net.observation_size).reshape(1, 3, -1)
    stale = 99 if env_id == "CartPole-v1" else 99.0  # of a step that was not in this episode
    actions = np.array([[stale, 1]]) if env_id == "CartPole-v1" else np.array([[[stale], [0.5]]])
    history = History(obs, actions, np.array([1]))
    expected = policy.act(obs[:, -1], deterministic=True, history=history).dist_inputs
    for other in (actions.astype(np.float32), actions.astype(np.float64)):
        again = policy.act(obs[:, -1], deterministic=True, history=history._replace(actions=other))
        np.testing.assert_array_equal(again.dist_inputs, expected)
    first = policy.act(obs[:, -1], deterministic=True).dist_inputs
    assert np.abs(first - expected).max() > 1e-6  # the history counts
    if env_id == "CartPole-v1":
        for wrong in (2, -1, 0.5):
            bad = history._replace(actions=np.array([[0, wrong]]))
            with pytest.raises(ObservationError, match="none of 0 to 1"):
                policy.act(obs[:, -1], deterministic=True, history=bad)
