"""Nets and inputs of LunarLander's shape; torch and the nets' own needs, no Ray."""

from __future__ import annotations

import torch
from torch import nn

from custom_models.configs import GPT2CriticConfig, MLPConfig
from custom_models.interfaces import Chunks
from custom_models.nets import build_actor_critic
from custom_models.spaces import ActionSpec

OBSERVATION_SIZE, NUM_ACTIONS = 8, 4
ACTIONS = ActionSpec("discrete", NUM_ACTIONS)
CONTEXT_LENGTH = 64
PAPER_CRITIC = GPT2CriticConfig(
    context_length=CONTEXT_LENGTH,
    n_layer=2,
    attention="approximate",
    time="absolute",
    history_actions=True,
)
"""Table I of the GPT2PPO paper, as fast as it can be had, without dropout."""


def build_critic(config: GPT2CriticConfig | MLPConfig) -> nn.Module:
    """The critic of an actor-critic, in training mode."""
    critic = build_actor_critic(config, OBSERVATION_SIZE, ACTIONS).critic
    assert critic is not None
    return critic.train()


def random_chunks(num_chunks: int, num_steps: int) -> Chunks:
    """Chunks from the middle of long episodes: no padding, all context in place."""
    shape = (num_chunks, num_steps)
    return Chunks(
        obs=torch.randn(*shape, OBSERVATION_SIZE),
        actions=torch.randint(NUM_ACTIONS, shape),
        rewards=torch.randn(shape),
        timesteps=torch.arange(100, 100 + num_steps).expand(shape).contiguous(),
        segment_ids=torch.zeros(shape, dtype=torch.int64),
    )
