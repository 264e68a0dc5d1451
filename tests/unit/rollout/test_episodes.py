"""Any episode can be played again in another process, whatever was played before it."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from rl_service.config.settings import EnvSettings
from rl_service.rollout.envs import make_env
from rl_service.rollout.episodes import SeededEpisodes, episode_seed
from tests.support.environments import ENVIRONMENTS


def build(env_id: str) -> SeededEpisodes:
    return SeededEpisodes(partial(make_env, EnvSettings(id=env_id, max_episode_steps=120)), 1, 2, 3)


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_a_replayed_episode_goes_on_as_the_original(env_id: str) -> None:
    rng = np.random.default_rng(0)
    original, other = build(env_id), build(env_id)
    original.action_space.seed(0)
    original.reset()
    for _ in range(int(rng.integers(300, 400))):  # several episodes, then somewhere in one
        _, _, terminated, truncated, _ = original.step(original.action_space.sample())
        if terminated or truncated:
            original.reset()
    assert other.replay(original.state())
    for _ in range(40):
        action = original.action_space.sample()
        ours, reward, *ends, _ = other.step(action)
        theirs, expected_reward, *expected_ends, _ = original.step(action)
        np.testing.assert_array_equal(ours, theirs)
        assert (reward, ends) == (expected_reward, expected_ends)
        if any(ends):
            break


def test_streams_of_workers_envs_and_episodes_are_apart() -> None:
    seeds = {episode_seed(1, w, e, n) for w in range(5) for e in range(5) for n in range(20)}
    assert len(seeds) == 500
