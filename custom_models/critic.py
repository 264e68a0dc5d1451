"""What every critic reads: chunks of a trajectory, the values of whose last steps are asked for."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

from torch import Tensor, nn

PADDING_SEGMENT = -1
"""Segment id of rows that stand for no step; no step ever sees them."""


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
    """(B, T) what followed each action, scaled as for learning; as little seen."""
    timesteps: Tensor
    """(B, T) steps since the episode's reset."""
    segment_ids: Tensor
    """(B, T) one id per episode, `PADDING_SEGMENT` for padding."""


class Critic(nn.Module):
    """Maps chunks to the (normalised) values of their last steps."""

    reads_rewards: bool = False
    """Whether it looks at `Chunks.rewards`, which nobody has where a policy is served."""
    steps_per_value: int = 1
    """Steps that are passed over for one more value: what its memory grows with."""

    @abstractmethod
    def forward(self, chunks: Chunks, num_values: int) -> Tensor:
        """Values (B, num_values) of the last `num_values` steps of each chunk."""
