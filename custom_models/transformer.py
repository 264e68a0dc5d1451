"""A GPT-2 trunk over token embeddings, with the masks of trajectory chunks.

The blocks and their parameters are those of Hugging Face's `GPT2Model`, so pretrained weights
load as they are; the pass over them is written out here for three gains: any mask with the
fused attention kernel, a last layer that computes only the rows that are asked for, and no
positional or vocabulary embedding to carry along.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2Model

from custom_models.configs import GPT2CriticConfig

_TANH_GELUS = {"gelu_new", "gelu_pytorch_tanh"}


def attention_mask(segment_ids: Tensor, context_length: int) -> Tensor:
    """Who may look at whom among the tokens (state, action) of each step.

    A token of step i sees the tokens of steps i-K+1 … i of its own segment, up to and
    including itself: the state token of step i does not see the action of step i.

    Args:
        segment_ids: (B, T) episode of each step; padding sees only itself.
        context_length: K, in steps.

    Returns:
        (B, 1, 2T, 2T) booleans, query rows by key columns; every row sees at least itself.
    """
    num_steps = segment_ids.shape[1]
    steps = torch.arange(num_steps, device=segment_ids.device)
    age = steps[:, None] - steps[None, :]  # (T, T) how far back a key lies
    band = (age >= 0) & (age < context_length)  # (T, T)
    same = segment_ids[:, :, None] == segment_ids[:, None, :]  # (B, T, T)
    real = (segment_ids >= 0)[:, :, None] | torch.eye(
        num_steps, dtype=torch.bool, device=segment_ids.device
    )
    visible = band & same & real  # (B, T, T)
    tokens = visible.repeat_interleave(2, dim=1).repeat_interleave(2, dim=2)  # (B, 2T, 2T)
    return tokens.tril().unsqueeze(1)  # (B, 1, 2T, 2T)


def load_gpt2(config: GPT2CriticConfig) -> GPT2Model:
    """A GPT-2 with random weights of the configured size, or a pretrained one from a folder.

    Raises:
        FileNotFoundError: if `config.pretrained` is not a folder with GPT-2 weights.
    """
    if config.pretrained is not None:
        folder = Path(config.pretrained).expanduser()
        if not (folder / "config.json").is_file():
            raise FileNotFoundError(f"{folder} holds no config.json of a pretrained GPT-2")
        return GPT2Model.from_pretrained(
            folder,
            local_files_only=True,
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

    def forward(self, x: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
        """Hidden states of the asked-for rows.

        Args:
            x: (B, T, C) token embeddings.
            mask: (B, 1, T, T) booleans, True where a query (row) may see a key (column).
            rows: (R,) token indices whose output is wanted.

        Returns:
            (B, R, C) normalised hidden states.
        """
        x = self._drop(x)  # (B, T, C)
        for block in self.h[:-1]:
            x = self._block(block, x, x, mask)  # (B, T, C)
        asked = x.index_select(1, rows)  # (B, R, C)
        x = self._block(self.h[-1], asked, x, mask.index_select(2, rows))  # (B, R, C)
        out: Tensor = self.ln_f(x)
        return out

    def _block(self, block: nn.Module, queries: Tensor, x: Tensor, mask: Tensor) -> Tensor:
        """One pre-norm block for the rows `queries` (B, R, C) over all tokens `x` (B, T, C)."""
        hidden = queries + self._attend(block, queries, x, mask)  # (B, R, C)
        return hidden + self._drop(self._feed_forward(block.mlp, block.ln_2(hidden)))

    def _attend(self, block: nn.Module, queries: Tensor, x: Tensor, mask: Tensor) -> Tensor:
        attn = block.attn
        (batch, num_rows, width), num_tokens = queries.shape, x.shape[1]
        heads = (self.n_head, width // self.n_head)
        if queries is x:
            qkv = attn.c_attn(block.ln_1(x))  # (B, T, 3C)
            q, k, v = qkv.split(width, dim=-1)  # (B, T, C) each
        else:
            weight, bias = attn.c_attn.weight, attn.c_attn.bias  # Conv1D: (C, 3C), (3C,)
            q = block.ln_1(queries) @ weight[:, :width] + bias[:width]  # (B, R, C)
            kv = block.ln_1(x) @ weight[:, width:] + bias[width:]  # (B, T, 2C)
            k, v = kv.split(width, dim=-1)
        q = q.view(batch, num_rows, *heads).transpose(1, 2)  # (B, H, R, D)
        k = k.view(batch, num_tokens, *heads).transpose(1, 2)  # (B, H, T, D)
        v = v.view(batch, num_tokens, *heads).transpose(1, 2)  # (B, H, T, D)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, scale=attn.scaling
        )  # (B, H, R, D)
        y = y.transpose(1, 2).reshape(batch, num_rows, width)  # (B, R, C)
        return self._drop(attn.c_proj(y))

    def _feed_forward(self, mlp: nn.Module, x: Tensor) -> Tensor:
        hidden = mlp.c_fc(x)  # (B, R, 4C)
        hidden = F.gelu(hidden, approximate="tanh") if self._tanh_gelu else mlp.act(hidden)
        out: Tensor = mlp.c_proj(hidden)  # (B, R, C)
        return out

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x
