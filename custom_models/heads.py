"""Actors: a small feed-forward net with a categorical or a Gaussian head.

An actor maps observations (B, O) to `dist_inputs`: logits (B, A) for discrete actions, or means
beside log standard deviations (B, 2A) for continuous ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from custom_models.history import History
from custom_models.interfaces import ActingCache, Actor
from custom_models.spaces import ActionSpec, FloatArray

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
_ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


def orthogonal_linear(in_features: int, out_features: int, gain: float) -> nn.Linear:
    """A linear layer with orthogonal weights and zero bias, the usual start in policy gradients.

    arXiv 2006.05990 measured the effect of the last policy layer's gain.
    """
    layer = nn.Linear(in_features, out_features)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def feed_forward(
    in_features: int, hidden_sizes: Sequence[int], activation: str, activate_last: bool
) -> nn.Sequential:
    """Hidden layers `Linear -> activation -> ... -> Linear [-> activation]`."""
    layers: list[nn.Module] = []
    sizes = [in_features, *hidden_sizes]
    for index, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        layers.append(orthogonal_linear(fan_in, fan_out, math.sqrt(2.0)))
        if activate_last or index < len(hidden_sizes) - 1:
            layers.append(_ACTIVATIONS[activation]())
    return nn.Sequential(*layers)


def linear_layers(body: nn.Module) -> list[tuple[nn.Linear, str | None]] | None:
    """The layers of a `feed_forward` body, each with the activation after it.

    None if there is anything else in it.
    """
    names = {kind: name for name, kind in _ACTIVATIONS.items()}
    layers: list[tuple[nn.Linear, str | None]] = []
    for module in body.children():
        if type(module) is nn.Linear:
            layers.append((module, None))
        elif type(module) in names and layers and layers[-1][1] is None:
            layers[-1] = (layers[-1][0], names[type(module)])
        else:
            return None
    return layers


class CategoricalHead(nn.Module):
    """Logits of a discrete action, or of all choices of an action side by side.

    Args:
        in_features: width of the features.
        sizes: of each choice.
    """

    def __init__(self, in_features: int, *sizes: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.logits = orthogonal_linear(in_features, sum(sizes), 0.01)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.logits(features)  # (B, A)
        return logits


class _Bounded(torch.autograd.Function):
    """Clamps log standard deviations; a gradient that leads back inside always passes."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor, passes_all: bool) -> Tensor:
        ctx.save_for_backward(raw)
        ctx.save_for_forward(raw)
        ctx.passes_all = passes_all
        return raw.clamp(LOG_STD_MIN, LOG_STD_MAX)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        """At a bound nothing moves in either direction: the derivative is one linear map."""
        (raw,) = ctx.saved_tensors
        return tangent.masked_fill((raw >= LOG_STD_MAX) | (raw <= LOG_STD_MIN), 0.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (raw,) = ctx.saved_tensors
        return (grad if ctx.passes_all else grad.masked_fill(_leads_outside(raw, grad), 0.0)), None


def _leads_outside(raw: Tensor, grad: Tensor) -> Tensor:
    """Where descent, which moves against the gradient, would leave the bounds."""
    return ((raw >= LOG_STD_MAX) & (grad < 0)) | ((raw <= LOG_STD_MIN) & (grad > 0))


class GaussianHead(nn.Module):
    """Mean and log standard deviation of a continuous action, side by side."""

    is_kept_inside_later: bool = False
    """Whether a gradient by `log_std` is a part of a sum, to which `keep_inside` is applied."""

    def __init__(
        self, in_features: int, action_spec: ActionSpec, log_std: str, log_std_init: float
    ) -> None:
        super().__init__()
        size = action_spec.size
        self.mean = orthogonal_linear(in_features, size, 0.01)
        with torch.no_grad():
            self.mean.bias.copy_(torch.tensor(action_spec.start_means))
        self.state_dependent = log_std == "state"
        if self.state_dependent:
            self.log_std_layer = orthogonal_linear(in_features, size, 0.01)
            nn.init.constant_(self.log_std_layer.bias, log_std_init)
        else:
            self.log_std = nn.Parameter(torch.full((size,), float(log_std_init)))

    def forward(self, features: Tensor) -> Tensor:
        mean: Tensor = self.mean(features)  # (B, A)
        raw = self.log_std_layer(features) if self.state_dependent else self.log_std
        passes_all = self.is_kept_inside_later and not self.state_dependent
        bounded: Tensor = _Bounded.apply(raw, passes_all)  # type: ignore[no-untyped-call]
        return torch.cat([mean, bounded.expand_as(mean)], dim=-1)  # (B, 2A)

    def keep_inside(self, gradient: Tensor) -> None:
        """Removes from a gradient (A,) by `log_std`, in place, what leads out of the bounds."""
        gradient.masked_fill_(_leads_outside(self.log_std, gradient), 0.0)


_HEADS = (CategoricalHead, GaussianHead)


def policy_head(
    in_features: int, action_spec: ActionSpec, log_std: str, log_std_init: float
) -> CategoricalHead | GaussianHead:
    """From features (..., in_features) to `dist_inputs`."""
    if action_spec.is_categorical:
        return CategoricalHead(in_features, *(action_spec.sizes or [action_spec.size]))
    return GaussianHead(in_features, action_spec, log_std, log_std_init)


class FeedForwardActor(Actor):
    """Observation (B, O) -> `dist_inputs` (B, num_dist_inputs)."""

    def __init__(
        self,
        observation_size: int,
        action_spec: ActionSpec,
        *,
        hidden_sizes: Sequence[int],
        activation: str,
        activate_last: bool,
        log_std: str,
        log_std_init: float,
    ) -> None:
        super().__init__()
        self.body = feed_forward(observation_size, hidden_sizes, activation, activate_last)
        width = hidden_sizes[-1] if hidden_sizes else observation_size
        self.head = policy_head(width, action_spec, log_std, log_std_init)

    def encode(self, history: History) -> Tensor:
        """The current observations, and nothing else."""
        return torch.from_numpy(history.obs[:, -1]).to(next(self.parameters()).device)

    def forward(self, inputs: Tensor) -> Tensor:
        dist_inputs: Tensor = self.head(self.body(inputs))
        return dist_inputs

    def open_cache(self) -> ActingCache | None:
        layers = linear_layers(self.body)
        # A subclass, or a head from outside, may compute something else.
        is_plain = type(self) is FeedForwardActor and type(self.head) in _HEADS
        if layers is None or not is_plain or next(self.parameters()).is_cuda:
            return None
        return _ArrayCache(layers, self.head)


class _ArrayCache(ActingCache):
    """The same net on NumPy arrays: for a few rows, torch takes several times as long.

    Args:
        layers: of its body, on the CPU.
        head: what reads them.
    """

    def __init__(self, layers: list[tuple[nn.Linear, str | None]], head: Any) -> None:
        self._body = [
            (*_arrays(layer), None if activation is None else _IN_PLACE[activation])
            for layer, activation in layers
        ]
        self._log_std: FloatArray | None = None
        if isinstance(head, CategoricalHead):
            self._outputs = [_arrays(head.logits)]
        elif head.state_dependent:
            self._outputs = [_arrays(head.mean), _arrays(head.log_std_layer)]
        else:
            self._outputs = [_arrays(head.mean)]
            self._log_std = head.log_std.detach().numpy().clip(LOG_STD_MIN, LOG_STD_MAX)

    def decide(self, history: History) -> FloatArray:
        x = history.obs[:, -1]  # (B, O)
        for weight, bias, activate in self._body:
            x = x @ weight
            x += bias
            if activate is not None:
                activate(x)
        outputs = [x @ weight + bias for weight, bias in self._outputs]  # (B, A) each
        if self._log_std is not None:
            outputs.append(np.broadcast_to(self._log_std, outputs[0].shape))
        elif len(outputs) == 2:
            outputs[1].clip(LOG_STD_MIN, LOG_STD_MAX, out=outputs[1])
        return outputs[0] if len(outputs) == 1 else np.concatenate(outputs, axis=1)


def _arrays(layer: nn.Linear) -> tuple[FloatArray, FloatArray]:
    """Weight (in, out) and bias (out,), which share the layer's memory."""
    return layer.weight.detach().numpy().T, layer.bias.detach().numpy()


_IN_PLACE: dict[str, Callable[[FloatArray], FloatArray]] = {
    "tanh": lambda x: np.tanh(x, out=x),
    "relu": lambda x: np.maximum(x, 0.0, out=x),
}


class StackActor(FeedForwardActor):
    """The last K observations side by side, oldest first, and the actions between them.

    Where the episode has no such step yet, there are zeros.

    Args:
        observation_size: O.
        action_spec: the actions.
        context_length: K.
        reads_actions: whether the actions are read: A numbers each, or 1 of A.
        shape: as for `FeedForwardActor`.
    """

    num_inputs: int

    def __init__(
        self,
        observation_size: int,
        action_spec: ActionSpec,
        *,
        context_length: int,
        reads_actions: bool,
        **shape: Any,
    ) -> None:
        width = context_length * observation_size
        if reads_actions:
            width += (context_length - 1) * action_spec.num_numbers
        super().__init__(width, action_spec, **shape)
        self.context_length, self.num_inputs = context_length, width
        self._spec, self._reads_actions = action_spec, reads_actions

    def encode(self, history: History) -> Tensor:
        """(B, num_inputs): K observations, then K-1 actions."""
        missing = history.missing
        obs = np.array(history.obs, np.float32)
        obs[:, :-1][missing] = 0.0
        parts = [obs.reshape(len(obs), -1)]
        if self._reads_actions:
            actions = np.array(history.actions)
            actions[missing] = 0  # what is left of another episode may be anything
            numbers = self._spec.numbers(actions)  # (B, K-1, A)
            numbers[missing] = 0.0
            parts.append(numbers.reshape(len(obs), -1))
        inputs = torch.from_numpy(np.concatenate(parts, axis=1))
        return inputs.to(next(self.parameters()).device)
