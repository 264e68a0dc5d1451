"""Actor, critic and loss of a PPO as CleanRL writes it, see `cleanrl`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn
from torch.distributions import Categorical, Distribution, Independent, Normal

CLIP_PARAM, VF_LOSS_COEFF = 0.2, 0.5


class Batch(NamedTuple):
    """Columns of env steps, `(B, ...)`."""

    obs: torch.Tensor
    actions: torch.Tensor
    action_logp: torch.Tensor
    advantages: torch.Tensor
    value_targets: torch.Tensor
    loss_mask: torch.Tensor
    """0 for the steps that only reset an env."""


class Agent(nn.Module):
    """Actor and critic apart, 64-64 tanh, for either kind of actions."""

    def __init__(self, obs_size: int, action_space: Box | Discrete) -> None:
        super().__init__()
        self.is_discrete = isinstance(action_space, Discrete)
        size = int(action_space.n if self.is_discrete else np.prod(action_space.shape))
        self.actor = _mlp(obs_size, size, last_gain=0.01)
        self.critic = _mlp(obs_size, 1, last_gain=1.0)
        if not self.is_discrete:
            self.log_std = nn.Parameter(torch.zeros(size))

    def policy(self, obs: torch.Tensor) -> Distribution:
        outputs = self.actor(obs)  # (B, A)
        if self.is_discrete:
            return Categorical(logits=outputs)
        return Independent(Normal(outputs, self.log_std.exp().expand_as(outputs)), 1)

    def values(self, obs: torch.Tensor) -> torch.Tensor:
        return self.critic(obs).squeeze(-1)  # (B,)

    @torch.no_grad()
    def act(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Sampled actions, their log-probabilities `(B,)`, and values `(B,)`."""
        policy = self.policy(obs)
        actions = policy.sample()
        return actions, policy.log_prob(actions), self.values(obs)

    def loss(self, batch: Batch) -> torch.Tensor:
        logp_ratio = self.policy(batch.obs).log_prob(batch.actions) - batch.action_logp
        ratio = logp_ratio.exp()  # (B,)
        advantages = batch.advantages
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        clipped = ratio.clamp(1 - CLIP_PARAM, 1 + CLIP_PARAM)
        surrogate = torch.minimum(advantages * ratio, advantages * clipped)  # (B,)
        vf_loss = 0.5 * (self.values(batch.obs) - batch.value_targets) ** 2  # (B,)
        return ((VF_LOSS_COEFF * vf_loss - surrogate) * batch.loss_mask).mean()


def _mlp(num_inputs: int, num_outputs: int, last_gain: float) -> nn.Sequential:
    """Orthogonal weights, biases of zero."""
    sizes, layers = (num_inputs, 64, 64, num_outputs), []
    for inputs, outputs, gain in zip(sizes, sizes[1:], (2**0.5, 2**0.5, last_gain), strict=False):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
        nn.init.orthogonal_(layers[-2].weight, gain)
        nn.init.zeros_(layers[-2].bias)
    return nn.Sequential(*layers[:-1])
