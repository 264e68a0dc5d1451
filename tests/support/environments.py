"""The seven environments that the presets cover, and the spaces of any."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import gymnasium as gym

from rl_service.config.settings import EnvSettings
from rl_service.rollout.envs import make_env

ENVIRONMENTS = (
    "CartPole-v1",
    "Acrobot-v1",
    "LunarLander-v3",
    "BipedalWalker-v3",
    "Pendulum-v1",
    "HalfCheetah-v4",
    "Walker2d-v4",
)


def env_spaces(env: EnvSettings) -> tuple[gym.spaces.Box, gym.Space[Any]]:
    """Observation space (flat float32) and action space of an environment."""
    with closing(make_env(env)) as made:
        space = made.observation_space
        assert isinstance(space, gym.spaces.Box)
        return space, made.action_space
