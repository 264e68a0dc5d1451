"""What every critic reads: chunks of a trajectory, of whose last steps it gives the values."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

from torch import Tensor, nn

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
    """(B, T) one id per episode, `PADDING_SEGMENT` for padding."""


class Critic(nn.Module):
    """Maps chunks to the (normalised) values of their last steps."""

    reads_rewards: bool = False
    """Whether it reads `Chunks.rewards`, which are not known where a policy is served."""
    steps_per_value: int = 1
    """Steps that each further value passes over, which is what memory grows with."""

    @abstractmethod
    def forward(self, chunks: Chunks, num_values: int) -> Tensor:
        """Values (B, num_values) of the last `num_values` steps of each chunk."""
