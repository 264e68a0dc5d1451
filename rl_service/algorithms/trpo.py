"""Trust-region policy optimisation (arXiv 1502.05477) with a critic that may read the history.

The actor takes one natural-gradient step per batch: the direction solves F x = g by conjugate
gradient on Fisher-vector products, the length makes the mean KL reach its limit if it were
quadratic, and a backtracking line search keeps the true KL within it. Only trainable parameters
take part.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from custom_models.heads import distribution
from rl_service.algorithms.base import OnPolicyAlgorithm
from rl_service.algorithms.flat_optimizer import FlatOptimizer, FlatParameters
from rl_service.algorithms.policy import ActorCriticPolicy
from rl_service.algorithms.trust_region import (
    Searched,
    Tried,
    fisher_product,
    line_search,
    natural_step,
)
from rl_service.algorithms.views import ActorRows, CriticChunks, LearnerBatch
from rl_service.config.algorithms import TRPOSettings


class TRPOPolicy(ActorCriticPolicy):
    """Natural gradient for the actor; Adam or L-BFGS for the critic."""

    algorithm: TRPOSettings

    def build_optimizers(self) -> dict[str, FlatOptimizer]:
        """One for the critic, unless L-BFGS starts anew with each batch; none for the actor."""
        self._actor_parameters = FlatParameters(self.net.actor)
        if self.algorithm.critic_optimizer == "adam":
            return {"critic": self.build_adam("critic", self.algorithm.critic_lr)}
        assert self.net.critic is not None
        self._critic_parameters = FlatParameters(self.net.critic)
        return {}

    def update_actor(self, batch: LearnerBatch) -> dict[str, float]:
        rows = self.with_normalised_advantages(batch.actor)
        surrogate = _surrogate(rows, self.action_distribution(rows.inputs))  # scalar
        # Of the loss, as a bounded log deviation expects: what pulls it back inside may pass.
        gradient = -self._actor_parameters.gradient(-surrogate)  # (P,)
        product = fisher_product(
            self._actor_parameters,
            self._fisher_inputs(rows),
            partial(distribution, self.action_spec),
            self.algorithm.cg_damping,
        )
        max_kl, iterations = self.algorithm.max_kl, self.algorithm.cg_iterations
        step, residual = natural_step(gradient, product, max_kl=max_kl, iterations=iterations)
        before = float(surrogate.detach())
        searched, entropy = self._search(rows, step, before)
        return {
            "policy_loss": -searched.surrogate,
            "surrogate_before": before,
            "surrogate_after": searched.surrogate,
            "mean_kl_loss": searched.kl,
            "line_search_steps": searched.num_steps,
            "step_accepted": float(searched.accepted),
            "cg_residual": residual,
            "grad_norm_actor": float(torch.linalg.vector_norm(gradient)),
            "entropy": entropy,
        }

    def _fisher_inputs(self, rows: ActorRows) -> Tensor:
        """Inputs that the Fisher matrix is estimated from."""
        num_rows = len(rows.inputs)
        wanted = max(1, round(self.algorithm.fisher_fraction * num_rows))
        if wanted == num_rows:
            return rows.inputs
        return rows.inputs[self.permutation(num_rows)[:wanted]]

    def _search(self, rows: ActorRows, step: Tensor, surrogate: float) -> tuple[Searched, float]:
        """How the line search ended, and the mean entropy of the policy that it left."""
        old = self.sampling_distribution(rows)
        new = old

        @torch.no_grad()
        def evaluate() -> Tried:
            nonlocal new
            new = self.action_distribution(rows.inputs)
            return Tried(float(_surrogate(rows, new)), float(old.kl(new).mean()))

        searched = line_search(
            self._actor_parameters,
            step,
            evaluate,
            surrogate=surrogate,
            max_kl=self.algorithm.max_kl,
            factor=self.algorithm.line_search_factor,
            num_steps=self.algorithm.line_search_steps,
        )
        left = new if searched.accepted else old
        return searched, float(left.entropy().mean())

    def fit_critic(self, batch: CriticChunks) -> dict[str, float]:
        if self.algorithm.critic_optimizer == "adam":
            return super().fit_critic(batch)
        return self._fit_critic_by_lbfgs(batch)

    def _fit_critic_by_lbfgs(self, batch: CriticChunks) -> dict[str, float]:
        """The whole batch at once, dropout off: a line search needs the same loss twice."""
        assert self.net.critic is not None
        flat = self._critic_parameters
        optimizer = torch.optim.LBFGS(
            [flat.vector],
            max_iter=self.algorithm.lbfgs_iterations,
            line_search_fn="strong_wolfe",
        )

        def closure() -> Tensor:
            flat.grad.zero_()
            loss = self.critic_loss(batch)
            penalised = loss + self.algorithm.critic_l2 * flat.vector.square().sum()
            penalised.backward()
            return penalised

        self.net.critic.eval()
        optimizer.step(closure)
        closure()  # the gradient where the line search has ended, not where it last looked
        with torch.no_grad():
            vf_loss = float(self.critic_loss(batch))
        self.net.critic.train()
        return {
            "vf_loss": vf_loss,
            "grad_norm_critic": float(torch.linalg.vector_norm(flat.grad)),
        }


def _surrogate(rows: ActorRows, new: Any) -> Tensor:
    """Mean advantage, weighted by how much likelier its action is under `new`; a scalar."""
    ratio: Tensor = (new.log_prob(rows.actions) - rows.action_logp).exp()  # (B,)
    return (rows.advantages * ratio).mean()


class TRPO(OnPolicyAlgorithm):
    """RLlib algorithm; all but the policy is shared."""

    policy_class = TRPOPolicy
