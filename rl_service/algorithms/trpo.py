"""Trust-region policy optimisation (arXiv 1502.05477) with a critic that may read the history.

The actor takes one natural-gradient step per batch: the direction solves F x = g by conjugate
gradient on Fisher-vector products, the length makes the mean KL reach its limit if it were
quadratic, and a backtracking line search keeps the true KL within it. Only trainable parameters
take part.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_models.distributions import Distribution, distribution
from custom_models.interfaces import Chunks
from rl_service.algorithms.base import OnPolicyAlgorithm
from rl_service.algorithms.batch import (
    ActorRows,
    CriticChunks,
    LearnerBatch,
    compute_dist_inputs,
)
from rl_service.algorithms.minibatches import map_columns, own_part
from rl_service.algorithms.optimizer import FlatOptimizer, FlatParameters
from rl_service.algorithms.peers import ALONE, Peers
from rl_service.algorithms.policy import ActorCriticPolicy
from rl_service.config.algorithms import TRPOSettings

Product = Callable[[Tensor], Tensor]
"""A symmetric positive definite matrix, as a function from a vector (P,) to its product (P,)."""
_SOLVED = 1e-10
"""Residual, relative to the right-hand side, below which a solution is exact enough."""


class TRPOPolicy(ActorCriticPolicy):
    """Natural gradient for the actor; Adam or L-BFGS for the critic."""

    algorithm: TRPOSettings

    def build_optimizers(self) -> dict[str, FlatOptimizer]:
        """Adam for the critic, if it is not fitted by L-BFGS; none for the actor."""
        self._actor_parameters = FlatParameters(self.net.actor)
        if self.algorithm.critic_optimizer == "adam":
            return {"critic": self.build_adam("critic", self.algorithm.critic_lr)}
        assert self.net.critic is not None
        self._critic_parameters = FlatParameters(self.net.critic)
        return {}

    def update_actor(self, batch: LearnerBatch) -> dict[str, float]:
        """Several learners average over their parts of the rows, and all find the same step."""
        parameters, peers = self._actor_parameters, self.peers["actor"]
        whole = self.with_normalised_advantages(batch.actor)
        rows, weight = own_part(whole, peers)
        surrogate = weight * _surrogate(rows, self.action_distribution(rows))  # scalar
        # Of the loss, as a bounded log deviation expects: what pulls it back inside may pass.
        gradient = -parameters.add_up(parameters.gradient(-surrogate), peers)  # (P,)
        fisher, fisher_weight = own_part(self._fisher_rows(whole), peers)
        product = fisher_product(
            parameters,
            fisher.inputs,
            partial(distribution, self.action_spec, allowed_as=fisher.dist_inputs),
            self.algorithm.cg_damping,
            fisher.loss_mask,
            fisher_weight,
            peers,
        )
        max_kl, iterations = self.algorithm.max_kl, self.algorithm.cg_iterations
        step, residual = natural_step(gradient, product, max_kl=max_kl, iterations=iterations)
        before = float(peers.sum(surrogate.detach().clone()))
        searched, entropy = self._search(rows, weight, step, before)
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

    def _fisher_rows(self, rows: ActorRows) -> ActorRows:
        """What the Fisher matrix is estimated from."""
        num_rows = len(rows.actions)
        wanted = max(1, round(self.algorithm.fisher_fraction * num_rows))
        if wanted == num_rows:
            return rows
        chosen = self.permutation("actor", num_rows)[:wanted]
        return map_columns(rows, lambda column: column[chosen])  # type: ignore[no-any-return]

    def _search(
        self, rows: ActorRows, weight: Tensor | float, step: Tensor, surrogate: float
    ) -> tuple[Searched, float]:
        """How the line search ended, and the mean entropy of the policy that it left.

        Args:
            rows: of this learner.
            weight: of their means.
            step: (P,) the longest.
            surrogate: before it.
        """
        peers = self.peers["actor"]
        old = self.sampling_distribution(rows)
        new = old

        @torch.no_grad()
        def evaluate() -> Tried:
            nonlocal new
            outputs = compute_dist_inputs(self.net.actor, rows.inputs)
            new = distribution(self.action_spec, outputs, rows.dist_inputs)
            found = torch.stack([_surrogate(rows, new), rows.mean(old.kl(new))])
            return Tried(*peers.sum(weight * found).tolist())

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
        return searched, float(peers.sum(weight * rows.mean(left.entropy())))

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
    return rows.mean(rows.advantages * rows.ratio(new.log_prob(rows.actions)))


class TRPO(OnPolicyAlgorithm):
    """RLlib algorithm; all but the policy is shared."""

    policy_class = TRPOPolicy


class Solution(NamedTuple):
    x: Tensor
    """(P,)"""
    residual: float
    """Norm of A x - b relative to that of b."""


def conjugate_gradient(product: Product, b: Tensor, iterations: int) -> Solution:
    """Solves A x = b without ever forming A (Hestenes and Stiefel 1952).

    Args:
        product: A.
        b: (P,) right-hand side.
        iterations: at most; P of them solve the system exactly but for rounding.
    """
    x, residual, direction = torch.zeros_like(b), b.clone(), b.clone()
    square = residual @ residual
    limit = _SOLVED**2 * square
    for _ in range(iterations):
        if square <= limit:
            break
        along = product(direction)
        curvature = direction @ along
        if not curvature > 0:  # a singular A, or rounding: what was found so far must do
            break
        length = square / curvature
        x += length * direction
        residual -= length * along
        previous, square = square, residual @ residual
        direction = residual + (square / previous) * direction
    norm = torch.linalg.vector_norm(b)
    return Solution(x, float(square.sqrt() / norm) if norm > 0 else 0.0)


def fisher_product(
    parameters: FlatParameters,
    inputs: Tensor | Chunks,
    read: Callable[[Tensor], Distribution],
    damping: float,
    loss_mask: Tensor | None = None,
    weight: Tensor | float = 1.0,
    peers: Peers = ALONE,
) -> Product:
    """The policy's mean Fisher matrix, plus `damping` on the diagonal.

    As F = Jᵀ M J: J is the derivative of the actor's outputs by its parameters, M the Fisher
    matrix of the distribution in these outputs. A product is a pass forward and one backward,
    and nothing is derived twice.

    Args:
        parameters: of the actor, which maps inputs to `dist_inputs`.
        inputs: the steps that are averaged over.
        read: from `dist_inputs` (B, D) to the distribution.
        damping: λ of F + λ I.
        loss_mask: as in `ActorRows`.
        weight: of these steps in the mean over those of all learners.
        peers: the learners.
    """
    dist_inputs = parameters.net(inputs)  # (B, D)
    dist = read(dist_inputs.detach())
    counted = torch.ones_like(dist_inputs[..., 0]) if loss_mask is None else loss_mask
    weights = (weight * counted / counted.sum()).unsqueeze(-1)  # (B, 1)

    def product(vector: Tensor) -> Tensor:
        change = dist.fisher_product(parameters.tangent(inputs, vector))  # (B, D)
        part = parameters.gradient(dist_inputs, change * weights)
        return peers.sum(part) + damping * vector

    return product


def natural_step(gradient: Tensor, product: Product, *, max_kl: float, iterations: int) -> Solution:
    """The step along F⁻¹ g whose KL, were it ½ xᵀ F x, would be `max_kl`.

    Its length is sqrt(2 δ / gᵀ F⁻¹ g). Zero where there is no gradient to follow.

    Args:
        gradient: (P,) g of the surrogate, which is to rise.
        product: F; damping on its diagonal makes the step shorter.
        max_kl: δ, nats.
        iterations: of conjugate gradient.

    Returns:
        The step (P,), and what conjugate gradient left over.
    """
    direction, residual = conjugate_gradient(product, gradient, iterations)
    curvature = direction @ product(direction)  # gᵀ F⁻¹ g, for this direction
    if not curvature > 0:  # also if it is not a number
        return Solution(torch.zeros_like(gradient), residual)
    return Solution((2.0 * max_kl / curvature).sqrt() * direction, residual)


class Tried(NamedTuple):
    """A policy at one step length."""

    surrogate: float
    kl: float
    """Mean KL from the old policy, nats."""


class Searched(NamedTuple):
    """How a line search ended."""

    surrogate: float
    kl: float
    """0 if no step was taken."""
    num_steps: int
    """Step lengths tried."""
    accepted: bool


def line_search(
    parameters: FlatParameters,
    step: Tensor,
    evaluate: Callable[[], Tried],
    *,
    surrogate: float,
    max_kl: float,
    factor: float,
    num_steps: int,
) -> Searched:
    """Takes the longest of the steps 1, factor, factor², … that keeps the limit and improves.

    If none does, the parameters are left as they were, bit for bit.

    Args:
        parameters: changed in place.
        step: (P,) the longest.
        evaluate: surrogate and KL at the parameters as they stand.
        surrogate: before the step.
        max_kl: δ.
        factor: 0…1.
        num_steps: lengths to try.
    """
    start = parameters.vector.detach().clone()
    for tried in range(1, num_steps + 1):
        parameters.vector.data.copy_(start + factor ** (tried - 1) * step)
        found = evaluate()
        if found.kl <= max_kl and found.surrogate > surrogate:  # false for NaN
            return Searched(found.surrogate, found.kl, tried, accepted=True)
    parameters.vector.data.copy_(start)
    return Searched(surrogate, 0.0, num_steps, accepted=False)
