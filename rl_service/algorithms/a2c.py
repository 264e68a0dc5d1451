"""Advantage actor-critic (arXiv 1602.01783, synchronous) with a critic that may read the history.

Every few steps of all envs, actor and critic take one gradient step each on what was just seen.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl_service.algorithms.base import OnPolicyAlgorithm
from rl_service.algorithms.batch import ActorRows, LearnerBatch
from rl_service.algorithms.optimizer import FlatOptimizer
from rl_service.algorithms.policy import ActorCriticPolicy
from rl_service.config.algorithms import A2CSettings

RMSPROP_ALPHA, RMSPROP_EPSILON = 0.99, 1e-5


class A2CPolicy(ActorCriticPolicy):
    """Policy gradient for the actor, squared error for the critic, one step each a batch."""

    algorithm: A2CSettings

    def build_optimizers(self) -> dict[str, FlatOptimizer]:
        if self.algorithm.optimizer == "adam":
            return super().build_optimizers()
        rates = {"actor": self.algorithm.actor_lr, "critic": self.algorithm.critic_lr}
        return {name: self._build_rmsprop(name, lr) for name, lr in rates.items()}

    def _build_rmsprop(self, name: str, lr: float) -> FlatOptimizer:
        return FlatOptimizer(
            getattr(self.net, name),
            lambda p: torch.optim.RMSprop(p, lr, alpha=RMSPROP_ALPHA, eps=RMSPROP_EPSILON),
        )

    def update_actor(self, batch: LearnerBatch) -> dict[str, float]:
        rows = self.with_normalised_advantages(batch.actor)
        stats = {"actor_lr": self.set_lr("actor", self.algorithm.actor_lr)}
        stats["policy_loss"] = float(-rows.mean(rows.advantages * rows.action_logp))
        stats["entropy"] = float(rows.mean(self.sampling_distribution(rows).entropy()))
        order = self.permutation("actor", len(rows.actions))
        stepped = self.steps["actor"].run(rows, order, 1)
        return stats | {"grad_norm_actor": float(stepped.grad_norm)}

    def actor_loss(self, rows: ActorRows) -> Tensor:
        dist = self.action_distribution(rows)
        loss = -rows.mean(rows.advantages * dist.log_prob(rows.actions))
        if self.algorithm.entropy_coeff:
            loss = loss - self.algorithm.entropy_coeff * rows.mean(dist.entropy())
        return loss


class A2C(OnPolicyAlgorithm):
    """RLlib algorithm; all but the policy is shared."""

    policy_class = A2CPolicy
