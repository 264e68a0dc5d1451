"""Your own algorithm: PPO with separate λ for actor and critic.

rl-service train -m gpt2_critic -a docs.examples.decoupled_ppo:DecoupledPPO -e CartPole-v1

The critic learns from the whole return (λ = 1, no bias), the actor from advantages with less
variance. The idea is from arXiv 2503.01491, "decoupled GAE".
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from custom_models.kinds import UnitFloat
from rl_service.algorithms.advantages import generalized_advantages
from rl_service.algorithms.ppo import PPO, PPOPolicy
from rl_service.config.algorithms import PPOSettings
from rl_service.rollout.fragments import Columns

Floats = npt.NDArray[np.float32]


class DecoupledPPO(PPOSettings):
    """All settings of `ppo`; `lambda_` is the critic's."""

    implementation: ClassVar[str] = f"{__name__}:Algorithm"

    lambda_: UnitFloat = 1.0
    actor_lambda: UnitFloat = 0.95


class Policy(PPOPolicy):
    """PPO, except for the advantages."""

    algorithm: DecoupledPPO

    def advantages(
        self, batch: Columns, segments: npt.NDArray[np.int64], values: Floats
    ) -> tuple[Floats, Floats]:
        """Advantages (N,) by the actor's λ and value targets (N,) by the critic's."""
        gamma = self.algorithm.gamma
        data = batch, segments, values, gamma
        advantages, _ = generalized_advantages(*data, self.algorithm.actor_lambda)
        _, targets = generalized_advantages(*data, self.algorithm.lambda_)
        return advantages, targets


class Algorithm(PPO):
    """The RLlib algorithm."""

    policy_class = Policy
