"""The GPT2PPO critic: a GPT-2 that reads the last K steps and gives the value of the last.

States and actions are embedded and interleaved as tokens s_0, a_0, s_1, a_1, … (the layout of the
Decision Transformer, arXiv 2106.01345, but without rewards-to-go). The hidden state at a state
token goes to the value head. The trunk has no positional embedding: `time` says how the critic
knows the order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from custom_models.attention import Ring, rotations, split_reach
from custom_models.heads import orthogonal_linear
from custom_models.interfaces import PADDING_SEGMENT, Chunks, Critic
from custom_models.model_config import GPT2CriticSettings
from custom_models.spaces import ActionSpec
from custom_models.transformer import GPT2Trunk, load_gpt2


class ChoicesEmbedding(nn.Embedding):
    """The sum of one embedding for each component of a multi_discrete action."""

    first_rows: Tensor

    def __init__(self, action_spec: ActionSpec, width: int) -> None:
        super().__init__(action_spec.num_dist_inputs, width)
        first_rows = torch.tensor(action_spec.first_logits)
        self.register_buffer("first_rows", first_rows, persistent=False)

    def forward(self, actions: Tensor) -> Tensor:
        """(..., C) of actions (..., A)."""
        return super().forward(actions + self.first_rows).sum(-2)


class StepReader(nn.Module):
    """Embeds steps as tokens and reads them with a GPT-2.

    Args:
        config: sizes, and what a step is.
        observation_size: O.
        action_spec: the actions.
    """

    def __init__(
        self, config: GPT2CriticSettings, observation_size: int, action_spec: ActionSpec
    ) -> None:
        """Builds it; a pretrained trunk decides its own size.

        Raises:
            FileNotFoundError: if `config.pretrained` holds no GPT-2.
            ValueError: if a context has more tokens than the trunk has positions, or the heads of
                a pretrained trunk are odd and time is relative.
        """
        super().__init__()
        self.context_length = config.context_length
        self.trunk = GPT2Trunk(load_gpt2(config))
        if config.num_tokens > self.trunk.n_positions:
            raise ValueError(
                f"context_length={config.context_length} needs {config.num_tokens} positions but "
                f"the trunk has {self.trunk.n_positions}"
            )
        if config.time == "relative" and self.trunk.head_size % 2:
            raise ValueError(f"time=relative needs heads of even size, not {self.trunk.head_size}")
        num_layers = len(self.trunk.h)
        self.reaches: tuple[int, ...] = (self.context_length,) * num_layers
        """k_l: steps that each layer looks back, its own included."""
        if config.attention == "banded":
            self.reaches = split_reach(self.context_length, num_layers)
        self.relative_time = config.time == "relative"
        self.reads_actions = config.history_actions
        width = self.trunk.n_embd
        self.embed_timestep: nn.Embedding | None = None
        if config.time == "absolute":
            self.embed_timestep = nn.Embedding(config.num_timesteps, width)
        self.embed_state = nn.Linear(observation_size, width)
        self.embed_action: nn.Module
        if not self.reads_actions:
            self.embed_action = nn.Identity()
        elif action_spec.kind == "discrete":
            self.embed_action = nn.Embedding(action_spec.size, width)
        elif action_spec.kind == "multi_discrete":
            self.embed_action = ChoicesEmbedding(action_spec, width)
        else:
            self.embed_action = nn.Linear(action_spec.size, width)
        for embedding in (self.embed_timestep, self.embed_action):
            if isinstance(embedding, nn.Embedding):
                nn.init.normal_(embedding.weight, std=0.02)
        self.embed_ln = nn.LayerNorm(width)

    def embed(self, chunks: Chunks) -> Tensor:
        """Token embeddings (B, T, n, C) of each step: its state and, with actions, its action."""
        parts = [self.embed_state(chunks.obs)]  # (B, T, C) each
        if self.reads_actions:
            parts.append(self.embed_actions(chunks))
        if self.embed_timestep is not None:
            last_row = self.embed_timestep.num_embeddings - 1
            time = self.embed_timestep(chunks.timesteps.clamp(max=last_row))  # (B, T, C)
            parts = [part + time for part in parts]
        tokens: Tensor = self.embed_ln(torch.stack(parts, dim=2))
        return tokens

    def embed_actions(self, chunks: Chunks) -> Tensor:
        """(B, T, C) what is known of a step after its action; its own output does not see it."""
        embedded: Tensor = self.embed_action(chunks.actions)
        return embedded

    def read(
        self, tokens: Tensor, segment_ids: Tensor, num_outputs: int, rings: list[Ring] | None = None
    ) -> Tensor:
        """One pass over (B, T) steps; hidden states (B, num_outputs, C) at the last state tokens.

        Args:
            tokens: of `embed`.
            segment_ids: (B, T) episode of each step.
            num_outputs: of each chunk.
            rings: of each layer, which take its keys and values.
        """
        turns = None
        if self.relative_time:
            turns = self.turns(torch.arange(tokens.shape[1], device=tokens.device))
            turns = turns.repeat_interleave(tokens.shape[2], 0)
        return self.trunk(tokens, segment_ids, self.reaches, num_outputs, turns, rings)  # type: ignore[no-any-return]

    def turns(self, steps: Tensor) -> Tensor:
        """Rotations (..., 1, D/2) of steps (...,), for relative time."""
        return rotations(steps, self.trunk.head_size, self.context_length)


class GPT2Critic(StepReader, Critic):
    """Value of a step from the K steps that end in it.

    `attention="banded"` makes one causal pass in which the layers together look back K steps.
    `attention="window"` recomputes the window of every value from the embeddings, in which each
    layer sees all: the paper's function. In both, a value depends on nothing else.
    `attention="approximate"` makes one causal pass in which each layer looks back K steps, so that
    a value also depends on earlier ones, as far as they are in its chunk. With one layer all three
    are the same.
    """

    def __init__(
        self, config: GPT2CriticSettings, observation_size: int, action_spec: ActionSpec
    ) -> None:
        super().__init__(config, observation_size, action_spec)
        self.attention = config.attention
        self.steps_per_value = config.context_length if config.attention == "window" else 1
        self.value_head = orthogonal_linear(self.trunk.n_embd, 1, 1.0)

    @property
    def sizes_without_folder(self) -> dict[str, Any]:
        """Settings that build it without its original folder; none if it needs that folder."""
        trunk = self.trunk
        if not trunk.is_plain:
            return {}
        sizes = {"n_layer": len(trunk.h), "n_head": trunk.n_head, "n_embd": trunk.n_embd}
        return {"pretrained": None, "n_positions": trunk.n_positions, **sizes}

    def forward(self, chunks: Chunks, num_values: int) -> Tensor:
        """Values (B, num_values) of the last `num_values` steps of each chunk."""
        tokens = self.embed(chunks)  # (B, T, n, C)
        if self.attention == "window":
            return self._window_values(tokens, chunks.segment_ids, num_values)
        return self._values(tokens, chunks.segment_ids, num_values)

    def _values(self, tokens: Tensor, segment_ids: Tensor, num_values: int) -> Tensor:
        """One pass over (B, T) steps; values (B, num_values) at the last state tokens."""
        hidden = self.read(tokens, segment_ids, num_values)
        values: Tensor = self.value_head(hidden).squeeze(-1)
        return values  # (B, num_values)

    def _window_values(self, tokens: Tensor, segment_ids: Tensor, num_values: int) -> Tensor:
        """One pass for each value's window of K steps; values (B, num_values)."""
        short = num_values + self.context_length - 1 - tokens.shape[1]
        if short > 0:  # the chunk has less context than a window: pad on the left
            tokens = nn.functional.pad(tokens, (0, 0, 0, 0, short, 0))
            segment_ids = nn.functional.pad(segment_ids, (short, 0), value=PADDING_SEGMENT)
        num_steps = num_values + self.context_length - 1
        windows = tokens[:, -num_steps:].unfold(1, self.context_length, 1)  # (B, V, n, C, K)
        windows = windows.permute(0, 1, 4, 2, 3).flatten(0, 1)  # (B*V, K, n, C)
        segments = segment_ids[:, -num_steps:].unfold(1, self.context_length, 1).flatten(0, 1)
        values = self._values(windows, segments, 1)  # (B*V, 1)
        return values.view(-1, num_values)
