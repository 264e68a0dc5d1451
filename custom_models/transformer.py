"""A GPT-2 trunk over the tokens of trajectory steps, with attention that looks back K steps.

The blocks and their parameters are those of Hugging Face's `GPT2Model`, so pretrained weights
load as they are; the pass over them is written out here for what the general one cannot do:

- attention in blocks of steps, whose cost grows linearly with the sequence;
- a last layer that computes only the rows whose value is asked for;
- dropout from 16-bit random numbers: torch's own makes the pass several times slower on a CPU.

A step is two tokens, its state and its action.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2Model

from custom_models.base_models import find_model
from custom_models.block_attention import block_attention, dropout
from custom_models.interfaces import PADDING_SEGMENT
from custom_models.model_config import GPT2CriticSettings

BLOCK_STEPS = 32
"""Steps whose queries share one window of keys. Smaller blocks waste less on keys out of reach,
larger ones fill matrix products better."""

_TANH_GELUS = {"gelu_new", "gelu_pytorch_tanh"}
_NOT_VISIBLE = -1e9


class BlockMask(NamedTuple):
    """Which keys each block of queries may see."""

    scores: Tensor
    """(B, N, 2w, 2b) to add to the attention scores; N blocks of b steps, windows of w."""
    block_steps: int
    """b"""
    window_steps: int
    """w >= b: the window of a block ends with the block."""


def block_mask(segment_ids: Tensor, context_length: int) -> BlockMask:
    """Who may look at whom among the tokens (state, action) of each step.

    A token of step i sees the tokens of steps i-K+1 … i of its own segment, up to and
    including itself: the state token of step i does not see the action of step i. Padding sees
    itself alone, so that no row is empty.

    Args:
        segment_ids: (B, T) episode of each step; T is a whole number of blocks.
        context_length: K, in steps.
    """
    num_steps, device = segment_ids.shape[1], segment_ids.device
    block = _block_steps(num_steps, context_length)
    reach = min(context_length - 1, num_steps - block)  # steps of a window before its block
    window = block + reach
    keys = F.pad(segment_ids, (reach, 0), value=PADDING_SEGMENT).unfold(1, window, block)
    queries = segment_ids.unflatten(1, (-1, block))  # (B, N, b); keys: (B, N, w)
    age = torch.arange(block, device=device) + reach
    age = age - torch.arange(window, device=device)[:, None]  # (w, b) steps from key to query
    same = (keys[..., :, None] == queries[..., None, :]) & (queries >= 0)[..., None, :]
    steps = (same & (age >= 0) & (age < context_length)) | (age == 0)  # (B, N, w, b)
    tokens = steps.repeat_interleave(2, -2).repeat_interleave(2, -1)  # (B, N, 2w, 2b)
    own_action = torch.zeros_like(tokens[0, 0])
    own_action[1::2, 0::2] = age == 0
    hidden = ~(tokens & ~own_action)
    scores = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, _NOT_VISIBLE)
    return BlockMask(scores, block, window)


def _block_steps(num_steps: int, context_length: int) -> int:
    """One block if all steps lie within reach of each other anyhow."""
    if num_steps <= context_length:
        return num_steps
    return min(BLOCK_STEPS, num_steps)


def load_gpt2(config: GPT2CriticSettings) -> GPT2Model:
    """A GPT-2 with random weights of the configured size, or a pretrained one from a folder.

    Raises:
        FileNotFoundError: if `config.pretrained` is neither a folder nor the name of a base model.
    """
    if config.pretrained is not None:
        return GPT2Model.from_pretrained(
            find_model(config.pretrained),
            local_files_only=True,
            dtype=torch.float32,  # else that of the file, and half precision does not train here
            attn_pdrop=config.dropout,
            resid_pdrop=config.dropout,
            embd_pdrop=config.dropout,
        )
    return GPT2Model(
        GPT2Config(
            vocab_size=1,
            n_positions=config.n_positions,
            n_layer=config.n_layer,
            n_head=config.n_head,
            n_embd=config.n_embd,
            attn_pdrop=config.dropout,
            resid_pdrop=config.dropout,
            embd_pdrop=config.dropout,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def _usual(config: GPT2Config) -> dict[str, tuple[Any, ...]]:
    """What a GPT-2 has unless its config says otherwise, beside its sizes."""
    return {
        "n_inner": (None, 4 * config.n_embd),
        "layer_norm_epsilon": (1e-5,),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
    }


class GPT2Trunk(nn.Module):
    """The blocks and final norm of a GPT-2, without positional and vocabulary embeddings."""

    def __init__(self, gpt2: GPT2Model) -> None:
        super().__init__()
        self.h = gpt2.h
        self.ln_f = gpt2.ln_f
        config = gpt2.config
        self.n_embd: int = config.n_embd
        self.n_head: int = config.n_head
        self.n_positions: int = config.n_positions
        self.dropout: float = config.resid_pdrop
        self._tanh_gelu = config.activation_function in _TANH_GELUS
        self.is_plain = self._tanh_gelu and all(
            getattr(config, name) in usual for name, usual in _usual(config).items()
        )
        """Whether a GPT-2 of these sizes, built here, is the same function of the same weights."""

    def forward(
        self, tokens: Tensor, segment_ids: Tensor, context_length: int, num_values: int
    ) -> Tensor:
        """Hidden states at the state tokens of the last steps.

        Args:
            tokens: (B, T, 2, C) embeddings of the state and the action of each step.
            segment_ids: (B, T) episode of each step.
            context_length: K, steps that a token looks back per layer, its own included.
            num_values: V, number of last steps whose output is wanted.

        Returns:
            (B, V, C) normalised hidden states.
        """
        missing = -tokens.shape[1] % _block_steps(tokens.shape[1], context_length)
        tokens = F.pad(tokens, (0, 0, 0, 0, missing, 0))  # whole blocks, filled on the left
        segment_ids = F.pad(segment_ids, (missing, 0), value=PADDING_SEGMENT)
        mask = block_mask(segment_ids, context_length)
        x = self._drop(tokens.flatten(1, 2))  # (B, 2T, C)
        for block in self.h[:-1]:
            x = self._block(block, x, x, mask)  # (B, 2T, C)
        asked_blocks = -(-num_values // mask.block_steps)
        states = x[:, -2 * asked_blocks * mask.block_steps :: 2]  # (B, R, C)
        last = mask._replace(scores=mask.scores[:, -asked_blocks:, :, 0::2].contiguous())
        x = self._block(self.h[-1], states, x, last)  # (B, R, C)
        hidden: Tensor = self.ln_f(x[:, -num_values:])
        return hidden

    def _block(self, block: Any, queries: Tensor, x: Tensor, mask: BlockMask) -> Tensor:
        """One pre-norm block for the rows `queries` (B, R, C) over all tokens `x` (B, 2T, C)."""
        hidden = queries + self._attend(block, queries, x, mask)  # (B, R, C)
        out: Tensor = hidden + self._drop(self._feed_forward(block.mlp, block.ln_2(hidden)))
        return out

    def _attend(self, block: Any, queries: Tensor, x: Tensor, mask: BlockMask) -> Tensor:
        batch, num_rows, width = queries.shape
        num_blocks = mask.scores.shape[1]
        q, k, v = self._project(block, queries, x)  # (B, R, C), (B, 2T, C), (B, 2T, C)
        q = (q * block.attn.scaling).view(batch, num_blocks, -1, self.n_head, width // self.n_head)
        q = q.permute(0, 1, 3, 4, 2)  # (B, N, H, D, r)
        k, v = (y.unflatten(2, (self.n_head, -1)) for y in (k, v))  # (B, 2T, H, D) each
        dropout = self.dropout if self.training else 0.0
        y = block_attention(q, k, v, mask.scores, 2 * mask.block_steps, dropout)
        y = y.permute(0, 1, 4, 2, 3).reshape(batch, num_rows, width).contiguous()  # (B, R, C)
        return self._drop(block.attn.c_proj(y))

    def _project(self, block: Any, queries: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, R, C), keys (B, 2T, C), values (B, 2T, C)."""
        attn, width = block.attn, self.n_embd
        if queries is x:
            q, k, v = attn.c_attn(block.ln_1(x)).split(width, dim=-1)
            return q, k, v
        weight, bias = attn.c_attn.weight, attn.c_attn.bias  # Conv1D: (C, 3C), (3C,)
        q = block.ln_1(queries) @ weight[:, :width] + bias[:width]
        k, v = (block.ln_1(x) @ weight[:, width:] + bias[width:]).split(width, dim=-1)
        return q, k, v

    def _feed_forward(self, mlp: Any, x: Tensor) -> Tensor:
        hidden = mlp.c_fc(x)  # (B, R, 4C)
        hidden = F.gelu(hidden, approximate="tanh") if self._tanh_gelu else mlp.act(hidden)
        out: Tensor = mlp.c_proj(hidden)  # (B, R, C)
        return out

    def _drop(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout) if self.training and self.dropout else x
