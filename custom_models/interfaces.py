"""What every actor and every critic is: what they read, and what they answer."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from custom_models.history import History


class Actor(nn.Module):
    """A policy's net in two parts; an update runs only the second.

    `encode` turns what was seen at a step into the *input*, from which `forward` computes the
    action distribution. No gradient passes through `encode`.
    """

    context_length: int = 1
    """K: observations that it reads, the current one included."""
    num_inputs: int | None = None
    """Entries of a step's input; None if it is the current observation itself."""
    feature_size: int = 0
    """Width of `features`; 0 if the actor has none."""
    repeats_its_work: bool = True
    """Whether `forward` does the same operations for all inputs of a shape, whatever their values,
    so that a GPU may record them."""
    autocast_dtype: torch.dtype | None = None
    """What the matrix products of a language model compute in, on a GPU; None: its weights' own
    type. Small nets always compute in float32."""

    @property
    def has_low_precision(self) -> bool:
        """Whether `forward` computes in `autocast_dtype`, and so not as rollout workers do."""
        return False

    @property
    def reads_as_before(self) -> bool:
        """Whether it reads the same as actors of earlier releases, whose checkpoints do not say."""
        return True

    @abstractmethod
    def encode(self, history: History) -> Tensor:
        """Inputs (B, I) of B steps, on the device of the weights."""

    @abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """`dist_inputs` (B, num_dist_inputs) from inputs (B, I)."""

    def features(self, inputs: Tensor) -> Tensor:
        """Features (B, feature_size) of the actor that a critic may read, without a gradient."""
        raise NotImplementedError

    def trainable_state(self) -> dict[str, Tensor]:
        """The weights that learning changes: all that rollout workers need."""
        return {name: p.detach() for name, p in self.named_parameters() if p.requires_grad}

    def own_state(self) -> dict[str, Tensor]:
        """The weights that differ from those of a fresh actor, which are what to save."""
        return {name: p.detach() for name, p in self.named_parameters()}

    def load(self, weights: dict[str, Tensor]) -> None:
        """Loads weights from `trainable_state` or `own_state`.

        Raises:
            RuntimeError: if they belong to another net.
        """
        if weights.keys() not in (self.trainable_state().keys(), self.own_state().keys()):
            raise RuntimeError("the actor's weights have other names than the given ones")
        self.load_state_dict(weights, strict=False)


PADDING_SEGMENT = -1
"""Segment id of padding rows, which no step ever sees."""


class Chunks(NamedTuple):
    """B chunks of T consecutive steps; the first steps of each serve as context.

    Steps of one chunk may belong to several episodes: a step sees only steps with its own
    segment id, never later ones, and never padding.
    """

    obs: Tensor
    """(B, T, O) float, as the actor sees them."""
    actions: Tensor
    """(B, T) integers or (B, T, A) floats. The last step's own action is never seen."""
    rewards: Tensor
    """(B, T) the reward after each action, scaled as for learning. The last one is never seen."""
    timesteps: Tensor
    """(B, T) steps since the episode's reset."""
    segment_ids: Tensor
    """(B, T) one id per unbroken stretch of an episode, `PADDING_SEGMENT` for padding."""


class Critic(nn.Module):
    """Maps chunks to the (normalised) values of their last steps."""

    reads_rewards: bool = False
    """Whether it reads `Chunks.rewards`, which are not known where a policy is served."""
    steps_per_value: int = 1
    """Steps that each further value passes over, which is what memory grows with."""

    @abstractmethod
    def forward(self, chunks: Chunks, num_values: int) -> Tensor:
        """Values (B, num_values) of the last `num_values` steps of each chunk."""
