"""Action distributions, from the `dist_inputs` of an actor."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from custom_models.spaces import ActionSpec

MASKED = -1e30
"""The logit of an action that is not allowed: finite, so that its probability, 0, stays a number in
products. The `dist_inputs` of a step say in this way which actions were allowed at it."""
IS_MASKED = MASKED / 10
"""A logit below is a masked one."""
_LOG_2PI = math.log(2.0 * math.pi)


class Categorical:
    """Distribution over actions 0 … A-1 from logits (B, A)."""

    def __init__(self, logits: Tensor) -> None:
        self.log_probs = F.log_softmax(logits, dim=-1)  # (B, A)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draws like `torch.multinomial`, without its checks, which cost more than the draw."""
        waits = torch.empty_like(self.log_probs).exponential_(generator=generator)  # (B, A)
        return (self.log_probs.exp() / waits).argmax(dim=-1)  # (B,)

    def mode(self) -> Tensor:
        return self.log_probs.argmax(dim=-1)  # (B,)

    def log_prob(self, actions: Tensor) -> Tensor:
        return self.log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)  # (B,)

    def entropy(self) -> Tensor:
        return -(self.log_probs.exp() * self.log_probs).sum(-1)  # (B,)

    def kl(self, other: Categorical) -> Tensor:
        """KL(self || other), nats, (B,)."""
        return (self.log_probs.exp() * (self.log_probs - other.log_probs)).sum(-1)

    def fisher_product(self, direction: Tensor) -> Tensor:
        """The Fisher matrix of the logits, diag(p) - p pᵀ, times a direction (B, A)."""
        probs = self.log_probs.exp()
        return probs * (direction - (probs * direction).sum(-1, keepdim=True))


class MultiCategorical:
    """Independent choices, one for each component of an action, from all their logits (B, D)."""

    def __init__(self, logits: Tensor, sizes: Sequence[int]) -> None:
        self.parts = [Categorical(part) for part in logits.split(list(sizes), dim=-1)]

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return torch.stack([part.sample(generator) for part in self.parts], dim=-1)  # (B, A)

    def mode(self) -> Tensor:
        return torch.stack([part.mode() for part in self.parts], dim=-1)  # (B, A)

    def log_prob(self, actions: Tensor) -> Tensor:
        chosen = zip(self.parts, actions.unbind(-1), strict=True)
        return torch.stack([part.log_prob(action) for part, action in chosen]).sum(0)  # (B,)

    def entropy(self) -> Tensor:
        return torch.stack([part.entropy() for part in self.parts]).sum(0)  # (B,)

    def kl(self, other: MultiCategorical) -> Tensor:
        """KL(self || other), nats, (B,)."""
        pairs = zip(self.parts, other.parts, strict=True)
        return torch.stack([mine.kl(its) for mine, its in pairs]).sum(0)

    def fisher_product(self, direction: Tensor) -> Tensor:
        """The Fisher matrix of the logits times a direction (B, D)."""
        sizes = [part.log_probs.shape[-1] for part in self.parts]
        pairs = zip(self.parts, direction.split(sizes, dim=-1), strict=True)
        return torch.cat([part.fisher_product(each) for part, each in pairs], dim=-1)


class DiagGaussian:
    """Independent Gaussians from means and log standard deviations side by side (B, 2A)."""

    def __init__(self, dist_inputs: Tensor) -> None:
        self.mean, self.log_std = dist_inputs.chunk(2, dim=-1)  # (B, A) each

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return torch.normal(self.mean, self.log_std.exp(), generator=generator)  # (B, A)

    def mode(self) -> Tensor:
        return self.mean

    def log_prob(self, actions: Tensor) -> Tensor:
        z = (actions - self.mean) * (-self.log_std).exp()  # (B, A)
        return (-0.5 * z.square() - self.log_std - 0.5 * _LOG_2PI).sum(-1)  # (B,)

    def entropy(self) -> Tensor:
        return (self.log_std + 0.5 * (1.0 + _LOG_2PI)).sum(-1)  # (B,)

    def kl(self, other: DiagGaussian) -> Tensor:
        """KL(self || other), nats, in closed form, (B,)."""
        ratio = (2.0 * (self.log_std - other.log_std)).exp()
        shift = (self.mean - other.mean).square() * (-2.0 * other.log_std).exp()
        return (other.log_std - self.log_std + 0.5 * (ratio + shift - 1.0)).sum(-1)

    def fisher_product(self, direction: Tensor) -> Tensor:
        """The Fisher matrix of means and log deviations, diag(1/σ², 2), times one (B, 2A)."""
        mean, log_std = direction.chunk(2, dim=-1)
        return torch.cat([mean * (-2.0 * self.log_std).exp(), 2.0 * log_std], dim=-1)


Distribution = Categorical | MultiCategorical | DiagGaussian


def masked_as(logits: Tensor, others: Tensor) -> Tensor:
    """The logits (..., D), masked where the others of the same steps are."""
    return torch.where(others > IS_MASKED, logits, MASKED)


def distribution(
    action_spec: ActionSpec, dist_inputs: Tensor, allowed_as: Tensor | None = None
) -> Distribution:
    """The action distribution that `dist_inputs` of an `Actor` stand for.

    Args:
        action_spec: the actions.
        dist_inputs: (..., D).
        allowed_as: (..., D) masked logits of the same steps: what they forbid is forbidden here.
    """
    if action_spec.kind == "box":
        return DiagGaussian(dist_inputs)
    if allowed_as is not None:
        dist_inputs = masked_as(dist_inputs, allowed_as)
    if action_spec.kind == "multi_discrete":
        return MultiCategorical(dist_inputs, action_spec.sizes)
    return Categorical(dist_inputs)
