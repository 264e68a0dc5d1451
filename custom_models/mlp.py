"""The baseline critic: an MLP on the current observation alone."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from custom_models.critic import Chunks, Critic
from custom_models.heads import feed_forward, orthogonal_linear


class MLPCritic(Critic):
    """Value of each observation by itself; context, if any, is ignored."""

    def __init__(self, observation_size: int, hidden_sizes: Sequence[int], activation: str) -> None:
        super().__init__()
        self.body = feed_forward(observation_size, hidden_sizes, activation, activate_last=True)
        width = hidden_sizes[-1] if hidden_sizes else observation_size
        self.value_head = orthogonal_linear(width, 1, 1.0)

    def forward(self, chunks: Chunks, num_values: int) -> Tensor:
        """Values (B, num_values) of the last `num_values` steps of each chunk."""
        return self.values(chunks.obs[:, -num_values:])

    def values(self, obs: Tensor) -> Tensor:
        """Values (...,) of observations (..., O)."""
        values: Tensor = self.value_head(self.body(obs)).squeeze(-1)
        return values
