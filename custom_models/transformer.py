"""A GPT-2 trunk over the tokens of trajectory steps, each layer of which looks back so many steps.

The blocks and their parameters are those of Hugging Face's `GPT2Model`, so pretrained weights
load as they are; the pass over them is written out here for what the general one cannot do:

- attention in blocks of steps, whose cost grows linearly with the sequence;
- layers that compute only the rows which the layers above them look at;
- relative time;
- one step at a time, with the keys and values of the steps before it kept in rings;
- dropout from 16-bit random numbers: torch's own makes the pass several times slower on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2Model

from custom_models.attention import Band, Ring, attend, band, dropout, rotate
from custom_models.base_models import find_model
from custom_models.model_config import GPT2CriticSettings

_TANH_GELUS = {"gelu_new", "gelu_pytorch_tanh"}


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
    """Default values of a GPT-2's settings other than its sizes."""
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

    @property
    def head_size(self) -> int:
        """D, features of a head."""
        return self.n_embd // self.n_head

    def forward(
        self,
        tokens: Tensor,
        segment_ids: Tensor,
        reaches: Sequence[int],
        num_values: int,
        turns: Tensor | None = None,
        rings: list[Ring] | None = None,
    ) -> Tensor:
        """Hidden states at the state tokens of the last steps.

        Args:
            tokens: (B, T, n, C) embeddings of each step: of its state and, if n = 2, its action.
            segment_ids: (B, T) episode of each step.
            reaches: k_l of each layer, steps that a token looks back, its own included.
            num_values: V, number of last steps whose output is wanted.
            turns: of `rotations`, (T*n, 1, D/2), for relative time.
            rings: of each layer, which take its keys and values.

        Returns:
            (B, V, C) normalised hidden states.
        """
        num_steps, per_step = tokens.shape[1:3]
        x = self._drop(tokens.flatten(1, 2))  # (B, T*n, C)
        above = sum(reaches) - len(reaches)
        blocks: Any = self.h
        for layer, (block, reach) in enumerate(zip(blocks, reaches, strict=True)):
            above -= reach - 1
            num_rows = min(num_steps, num_values + above)  # R: what the layers above look at
            last = layer == len(self.h) - 1
            seen = band(segment_ids[:, -num_steps:], reach, num_rows, per_step, states_only=last)
            rows = slice(-num_rows * per_step, None, per_step if last else 1)
            q, k, v = self._project(block.attn, block.ln_1(x), rows, turns)
            if rings is not None:
                rings[layer].fill(k, v, tokens.shape[1])
            x = self._finish(block, x[:, rows], self._attend(block.attn, q, k, v, seen))
            num_steps = num_rows
        hidden: Tensor = self.ln_f(x[:, -num_values:])
        return hidden

    def step(
        self, tokens: Tensor, rings: list[Ring], turns: Tensor, step: int, num_earlier: Tensor
    ) -> Tensor:
        """The hidden state of one more step of E envs, whose history is in the rings.

        Args:
            tokens: (E, n, C) embeddings: with n = 2, of the action before and the state.
            rings: of each layer; they take the step.
            turns: (n, 1, D/2).
            step: as for `Ring.write`.
            num_earlier: likewise.

        Returns:
            (E, C).
        """
        x, turns = tokens, turns[:, None]
        blocks: Any = self.h
        for layer, (block, ring) in enumerate(zip(blocks, rings, strict=True)):
            qkv = block.attn.c_attn(block.ln_1(x)).unflatten(2, (3, self.n_head, -1))
            q, k = rotate(qkv[:, :, :2], turns).unbind(2)  # (E, n, H, D) each
            keys, values, visible = ring.write(k, qkv[:, :, 2], step, num_earlier)
            if layer == len(self.h) - 1:
                x, q, visible = x[:, -1:], q[:, -1:], visible[:, :, -1:]
            y = attend(q.transpose(1, 2), keys, values, visible, block.attn.scaling, 0.0)
            x = self._finish(block, x, block.attn.c_proj(y.transpose(1, 2).flatten(2)))
        hidden: Tensor = self.ln_f(x[:, 0])
        return hidden

    def _project(
        self, attn: Any, x: Tensor, rows: slice, turns: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, R', H, D) of some rows of x (B, S', C), and keys and values of all."""
        width, c_attn = self.n_embd, attn.c_attn
        of_q, of_kv = c_attn.weight.split((width, 2 * width), dim=1)  # (C, C), (C, 2C)
        bias_q, bias_kv = c_attn.bias.split((width, 2 * width))
        q = (x[:, rows] @ of_q + bias_q).unflatten(2, (self.n_head, -1))
        kv = (x @ of_kv + bias_kv).chunk(2, dim=-1)
        k, v = (y.unflatten(2, (self.n_head, -1)) for y in kv)
        if turns is not None:
            turns = turns[-x.shape[1] :]
            q, k = rotate(q, turns[rows]), rotate(k, turns)
        return q, k, v

    def _attend(self, attn: Any, q: Tensor, k: Tensor, v: Tensor, seen: Band) -> Tensor:
        """What the queries' rows read, (B, R', C)."""
        batch, num_rows = q.shape[:2]
        q, k, v = (y.transpose(1, 2) for y in seen.windows(q, k, v))  # (B*N, H, r or w, D)
        y = attend(q, k, v, seen.visible, attn.scaling, self.dropout if self.training else 0.0)
        y = y.transpose(1, 2).reshape(batch, -1, self.n_embd)  # (B, N*r, C)
        return self._drop(attn.c_proj(y[:, -num_rows:].contiguous()))

    def _finish(self, block: Any, x: Tensor, read: Tensor) -> Tensor:
        """The rest of a pre-norm block, after what its attention has read."""
        hidden = x + read
        out: Tensor = hidden + self._drop(self._feed_forward(block.mlp, block.ln_2(hidden)))
        return out

    def _feed_forward(self, mlp: Any, x: Tensor) -> Tensor:
        hidden = mlp.c_fc(x)  # (B, R, 4C)
        hidden = F.gelu(hidden, approximate="tanh") if self._tanh_gelu else mlp.act(hidden)
        out: Tensor = mlp.c_proj(hidden)  # (B, R, C)
        return out

    def _drop(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout) if self.training and self.dropout else x
