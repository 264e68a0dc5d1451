"""The GPT2PPO critic: a GPT-2 that reads the last K steps and gives the value of the last.

States and actions are embedded, a learned timestep embedding is added, and both are interleaved
as tokens s_0, a_0, s_1, a_1, … (the layout of the Decision Transformer, arXiv 2106.01345, but
without rewards-to-go). The hidden state at a state token goes to the value head. Timesteps alone
tell the order: the trunk has no positional embedding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from custom_models.heads import orthogonal_linear
from custom_models.interfaces import PADDING_SEGMENT, Chunks, Critic
from custom_models.model_config import GPT2CriticSettings
from custom_models.spaces import ActionSpec
from custom_models.transformer import GPT2Trunk, load_gpt2


class GPT2Critic(Critic):
    """Value of a step from the K steps that end in it.

    `attention="window"` recomputes the window of every value from the embeddings: the paper's
    function, and the reference. `attention="banded"` makes one causal pass in which each token
    looks back K steps per layer. With one layer both are the same function.
    """

    def __init__(
        self, config: GPT2CriticSettings, observation_size: int, action_spec: ActionSpec
    ) -> None:
        """Builds the critic; a pretrained trunk decides its own size.

        Raises:
            FileNotFoundError: if `config.pretrained` holds no GPT-2.
            ValueError: if a window has more tokens than the trunk has positions.
        """
        super().__init__()
        self.context_length = config.context_length
        self.attention = config.attention
        self.steps_per_value = config.context_length if config.attention == "window" else 1
        self.trunk = GPT2Trunk(load_gpt2(config))
        if 2 * config.context_length > self.trunk.n_positions:
            raise ValueError(
                f"context_length={config.context_length} needs {2 * config.context_length} "
                f"positions but the trunk has {self.trunk.n_positions}"
            )
        width = self.trunk.n_embd
        self.embed_timestep = nn.Embedding(config.max_timesteps, width)
        self.embed_state = nn.Linear(observation_size, width)
        self.embed_action: nn.Module
        if action_spec.kind == "discrete":
            self.embed_action = nn.Embedding(action_spec.size, width)
        else:
            self.embed_action = nn.Linear(action_spec.size, width)
        for embedding in (self.embed_timestep, self.embed_action):
            if isinstance(embedding, nn.Embedding):
                nn.init.normal_(embedding.weight, std=0.02)
        self.embed_ln = nn.LayerNorm(width)
        self.value_head = orthogonal_linear(width, 1, 1.0)

    @property
    def sizes_without_folder(self) -> dict[str, Any]:
        """Settings that build it without its original folder; None if it needs that folder."""
        trunk = self.trunk
        if not trunk.is_plain:
            return {}
        sizes = {"n_layer": len(trunk.h), "n_head": trunk.n_head, "n_embd": trunk.n_embd}
        return {"pretrained": None, "n_positions": trunk.n_positions, **sizes}

    def forward(self, chunks: Chunks, num_values: int) -> Tensor:
        """Values (B, num_values) of the last `num_values` steps of each chunk."""
        tokens = self._embed(chunks)  # (B, T, 2, C)
        if self.attention == "window":
            return self._window_values(tokens, chunks.segment_ids, num_values)
        return self._values(tokens, chunks.segment_ids, num_values)

    def _embed(self, chunks: Chunks) -> Tensor:
        """Token embeddings (B, T, 2, C): state and action of each step."""
        last_row = self.embed_timestep.num_embeddings - 1
        time = self.embed_timestep(chunks.timesteps.clamp(max=last_row))  # (B, T, C)
        states = self.embed_state(chunks.obs) + time  # (B, T, C)
        actions = self.embed_actions(chunks) + time  # (B, T, C)
        tokens: Tensor = self.embed_ln(torch.stack([states, actions], dim=2))
        return tokens

    def embed_actions(self, chunks: Chunks) -> Tensor:
        """(B, T, C) what is known of a step after its action; its own value does not see it."""
        embedded: Tensor = self.embed_action(chunks.actions)
        return embedded

    def _values(self, tokens: Tensor, segment_ids: Tensor, num_values: int) -> Tensor:
        """One pass over (B, T) steps; values (B, num_values) at the last state tokens."""
        hidden = self.trunk(tokens, segment_ids, self.context_length, num_values)
        values: Tensor = self.value_head(hidden).squeeze(-1)
        return values  # (B, num_values)

    def _window_values(self, tokens: Tensor, segment_ids: Tensor, num_values: int) -> Tensor:
        """One pass for each value's window of K steps; values (B, num_values)."""
        short = num_values + self.context_length - 1 - tokens.shape[1]
        if short > 0:  # the chunk has less context than a window: pad on the left
            tokens = nn.functional.pad(tokens, (0, 0, 0, 0, short, 0))
            segment_ids = nn.functional.pad(segment_ids, (short, 0), value=PADDING_SEGMENT)
        num_steps = num_values + self.context_length - 1
        windows = tokens[:, -num_steps:].unfold(1, self.context_length, 1)  # (B, V, 2, C, K)
        windows = windows.permute(0, 1, 4, 2, 3).flatten(0, 1)  # (B*V, K, 2, C)
        segments = segment_ids[:, -num_steps:].unfold(1, self.context_length, 1).flatten(0, 1)
        values = self._values(windows, segments, 1)  # (B*V, 1)
        return values.view(-1, num_values)
