"""The GPT2PPO paper's critic, written plainly on Hugging Face's `GPT2Model`.

Every value has an explicit window of its last K steps as input, and every token of it goes
through every layer. Nothing of `custom_models` is used: this is what the fast critic is measured
against.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2Model


class PaperCritic(nn.Module):
    """Table I: 2 layers, 8 heads, 64 wide, dropout 0.5; no positional embeddings."""

    def __init__(self, observation_size: int, num_actions: int, *, width: int = 64) -> None:
        super().__init__()
        self.embed_timestep = nn.Embedding(1024, width)
        self.embed_state = nn.Linear(observation_size, width)
        self.embed_action = nn.Embedding(num_actions, width)
        self.embed_ln = nn.LayerNorm(width)
        self.trunk = GPT2Model(
            GPT2Config(
                vocab_size=1,
                n_positions=1024,
                n_layer=2,
                n_head=8,
                n_embd=width,
                attn_pdrop=0.5,
                resid_pdrop=0.5,
                embd_pdrop=0.5,
                bos_token_id=None,
                eos_token_id=None,
            )
        )
        nn.init.zeros_(self.trunk.wpe.weight).requires_grad_(False)
        self.value_head = nn.Linear(width, 1)

    def forward(self, obs: Tensor, actions: Tensor, timesteps: Tensor, mask: Tensor) -> Tensor:
        """Values (B,) of the last steps of B windows.

        Args:
            obs: (B, K, O).
            actions: (B, K) integers.
            timesteps: (B, K).
            mask: (B, K) 0 for padding.
        """
        time = self.embed_timestep(timesteps)  # (B, K, C)
        states = self.embed_state(obs) + time  # (B, K, C)
        taken = self.embed_action(actions) + time  # (B, K, C)
        tokens = torch.stack([states, taken], dim=2).flatten(1, 2)  # (B, 2K, C)
        hidden = self.trunk(
            inputs_embeds=self.embed_ln(tokens), attention_mask=mask.repeat_interleave(2, 1)
        ).last_hidden_state  # (B, 2K, C)
        values: Tensor = self.value_head(hidden[:, -2]).squeeze(-1)  # at the last state token
        return values
