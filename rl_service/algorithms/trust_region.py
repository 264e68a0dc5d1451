"""Natural-gradient steps under a KL limit; plain tensors, no policy and no Ray."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from custom_models.heads import Distribution
from rl_service.algorithms.flat_optimizer import FlatParameters

Product = Callable[[Tensor], Tensor]
"""A symmetric positive definite matrix, as a function from a vector (P,) to its product (P,)."""

_SOLVED = 1e-10
"""Residual, relative to the right-hand side, below which a solution is exact enough."""


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
    inputs: Tensor,
    read: Callable[[Tensor], Distribution],
    damping: float,
) -> Product:
    """The policy's mean Fisher matrix, plus `damping` on the diagonal.

    As F = Jᵀ M J: J is the derivative of the actor's outputs by its parameters, M the Fisher
    matrix of the distribution in these outputs. A product is a pass forward and one backward,
    and nothing is derived twice.

    Args:
        parameters: of the actor, which maps inputs to `dist_inputs`.
        inputs: (B, I) the steps that are averaged over.
        read: from `dist_inputs` (B, D) to the distribution.
        damping: λ of F + λ I.
    """
    dist_inputs = parameters.net(inputs)  # (B, D)
    dist = read(dist_inputs.detach())

    def product(vector: Tensor) -> Tensor:
        change = dist.fisher_product(parameters.tangent(inputs, vector))  # (B, D)
        return parameters.gradient(dist_inputs, change / len(inputs)) + damping * vector

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
