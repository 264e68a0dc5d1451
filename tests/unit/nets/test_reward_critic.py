"""The example of a model from outside: a critic that reads past rewards."""

from __future__ import annotations

import gymnasium as gym
import pytest
import torch

from custom_models.interfaces import Chunks
from custom_models.nets import build_actor_critic
from custom_models.spaces import ActionSpec
from docs.examples.reward_critic import RewardCritic

DISCRETE = ActionSpec.from_space(gym.spaces.Discrete(3))


@pytest.mark.parametrize("attention", ["banded", "window"])
def test_a_value_reads_the_rewards_before_its_step_alone(attention: str) -> None:
    torch.manual_seed(0)
    config = RewardCritic(
        context_length=3,
        n_layer=1,
        n_head=2,
        n_embd=8,
        attention=attention,  # type: ignore[arg-type]
    )
    critic = build_actor_critic(config, 4, DISCRETE).critic
    assert critic is not None and critic.reads_rewards
    chunks = Chunks(
        obs=torch.randn(1, 8, 4),
        actions=torch.randint(3, (1, 8)),
        rewards=torch.randn(1, 8),
        timesteps=torch.arange(8)[None],
        segment_ids=torch.zeros(1, 8, dtype=torch.int64),
    )
    rewards = chunks.rewards.clone()
    rewards[0, 4] += 1.0
    with torch.no_grad():
        before, after = (critic.eval()(c, 8)[0] for c in (chunks, chunks._replace(rewards=rewards)))
    changed = (before != after).tolist()
    # Its own step's value, and those before it, are the same; so are those whose window ended.
    assert changed == [False] * 5 + [True] * 2 + [False]


def test_the_weights_are_within_what_the_settings_say() -> None:
    config = RewardCritic(n_layer=1, n_head=2, n_embd=8, time="absolute", max_timesteps=16)
    net = build_actor_critic(config, 4, DISCRETE)
    assert sum(p.numel() for p in net.parameters()) <= config.max_weights(4, 3)
