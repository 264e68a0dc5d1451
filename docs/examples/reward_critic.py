"""Your own model: a GPT-2 critic that also reads past rewards.

rl-service train -m docs.examples.reward_critic:RewardCritic -e CartPole-v1

The settings class is the model's name, and it names the class that builds actor and critic. Here
both are in one file. In two files, settings are checked without waiting for torch.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from custom_models.configs import GPT2CriticConfig
from custom_models.gpt2_critic import GPT2Critic
from custom_models.interfaces import Chunks, Critic
from custom_models.nets import GPT2CriticNet
from custom_models.spaces import ActionSpec


class RewardCritic(GPT2CriticConfig):
    """All settings of `gpt2_critic`, and one more."""

    implementation: ClassVar[str] = f"{__name__}:RewardCriticNet"

    history_actions: bool = True
    """Rewards are in the actions' tokens."""
    reward_scale: float = 1.0
    """Factor on each reward before it is embedded."""

    def max_weights(self, num_inputs: int, num_outputs: int) -> int:
        """The reward's embedding has a weight and a bias for each of n_embd numbers."""
        return super().max_weights(num_inputs, num_outputs) + 2 * self.n_embd


class RewardReader(GPT2Critic):
    """Adds the reward that followed an action to that action's token."""

    reads_rewards = True

    def __init__(
        self, config: RewardCritic, observation_size: int, action_spec: ActionSpec
    ) -> None:
        super().__init__(config, observation_size, action_spec)
        self.reward_scale = config.reward_scale
        self.embed_reward = nn.Linear(1, self.trunk.n_embd)

    def embed_actions(self, chunks: Chunks) -> Tensor:
        """(B, T, C). Attention is causal: no value sees its own step's action and reward."""
        rewards = torch.tanh(self.reward_scale * chunks.rewards).unsqueeze(-1)  # (B, T, 1)
        embedded: Tensor = super().embed_actions(chunks) + self.embed_reward(rewards)
        return embedded


class RewardCriticNet(GPT2CriticNet):
    """The small actor of `gpt2_critic`, and the critic above."""

    @classmethod
    def build_critic(
        cls,
        config: RewardCritic,  # type: ignore[override]  # it gets this kind's settings
        observation_size: int,
        action_spec: ActionSpec,
        feature_size: int,
    ) -> Critic:
        return RewardReader(config, observation_size, action_spec)
