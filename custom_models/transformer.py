"""A GPT-2 trunk over the tokens of trajectory steps, each layer of which looks back so many steps.

The blocks and their parameters are those of Hugging Face's `GPT2Model`, so pretrained weights
load as they are; the pass over them is written out here for what the general one cannot do:

- attention in blocks of steps, whose cost grows linearly with the sequence;
- layers that compute only the rows which the layers above them look at;
- relative time;
- dropout from 16-bit random numbers: torch's own makes the pass several times slower on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2Model

from custom_models.base_models import find_model
from custom_models.interfaces import PADDING_SEGMENT
from custom_models.model_config import GPT2CriticSettings

BLOCK_STEPS = 32
"""Steps whose queries share one window of keys. Smaller blocks waste less on keys out of reach,
larger ones fill matrix products better."""

_TANH_GELUS = {"gelu_new", "gelu_pytorch_tanh"}
_DROPOUT_LEVELS = 1 << 16


def split_reach(context_length: int, num_layers: int) -> tuple[int, ...]:
    """Steps that each layer looks back, its own included, so that all together look back K.

    Layer l adds k_l - 1 steps to what the layers before it have seen: the sum over the layers of
    k_l - 1 is K - 1. The split is even; what is left over goes to the first layers.
    """
    each, left = divmod(context_length - 1, num_layers)
    return tuple(1 + each + (layer < left) for layer in range(num_layers))


class Band(NamedTuple):
    """Which tokens of S steps the tokens of the last R of them see, in N blocks of b steps."""

    visible: Tensor
    """(B * N, 1, r, w) whether query r of a block sees key w of the block's window."""
    num_blocks: int
    """N"""
    step: int
    """Tokens from a block's window to the next one's."""

    def windows(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Cuts tokens into blocks and their windows.

        Args:
            q: (B, R', H, D) queries.
            k: (B, S', H, D) keys.
            v: (B, S', H, D) values.

        Returns:
            (B * N, r, H, D) and twice (B * N, w, H, D).
        """
        queries, window = self.visible.shape[2:]
        if self.num_blocks == 1:
            return q, k[:, -window:], v[:, -window:]
        q = _last(q, self.num_blocks * queries).unflatten(1, (self.num_blocks, queries))
        k, v = (
            _last(y, window + (self.num_blocks - 1) * self.step)
            .unfold(1, window, self.step)  # (B, N, H, D, w)
            .permute(0, 1, 4, 2, 3)
            .flatten(0, 1)
            for y in (k, v)
        )
        return q.flatten(0, 1), k, v


def band(
    segment_ids: Tensor, reach: int, num_rows: int, tokens_per_step: int, *, states_only: bool
) -> Band:
    """Makes the mask of a layer.

    A token of step i sees the tokens of steps i-k+1 … i of its own segment, up to and including
    itself: the state token of step i does not see the action of step i. Padding sees itself
    alone, so that no row is empty.

    Args:
        segment_ids: (B, S) episode of each step.
        reach: k.
        num_rows: R, the last steps, whose tokens are the queries.
        tokens_per_step: 2 with actions, 1 without.
        states_only: whether the queries are state tokens alone.
    """
    num_steps, device = segment_ids.shape[1], segment_ids.device
    block = min(num_rows, BLOCK_STEPS)
    num_blocks = -(-num_rows // block)
    window = block + reach - 1
    if num_blocks == 1:
        window = min(window, num_steps)
    keys = _last(segment_ids, window + (num_blocks - 1) * block, PADDING_SEGMENT)
    queries = keys[:, -num_blocks * block :].unflatten(1, (num_blocks, block))[..., None]
    keys = keys.unfold(1, window, block)[:, :, None]  # (B, N, 1, w); queries: (B, N, b, 1)
    age = torch.arange(window - block, window, device=device)[:, None]
    age = age - torch.arange(window, device=device)  # (b, w) steps from key to query
    near = (queries == keys) & (queries != PADDING_SEGMENT) & (age >= 0) & (age < reach)
    visible = near | (age == 0)  # (B, N, b, w)
    if tokens_per_step == 2:
        of_states = torch.stack([visible, visible & (age > 0)], -1).flatten(-2)  # (B, N, b, 2w)
        if states_only:
            visible = of_states
        else:
            of_actions = visible.repeat_interleave(2, -1)
            visible = torch.stack([of_states, of_actions], 3).flatten(2, 3)  # (B, N, 2b, 2w)
    return Band(visible.flatten(0, 1)[:, None], num_blocks, tokens_per_step * block)


def _last(x: Tensor, length: int, fill: float = 0.0) -> Tensor:
    """The last entries along dimension 1, filled on the left if there are too few."""
    missing = length - x.shape[1]
    if missing <= 0:
        return x[:, -length:]
    return F.pad(x, (0, 0) * (x.dim() - 2) + (missing, 0), value=fill)


def rotations(num_steps: int, head_size: int, context_length: int, device: torch.device) -> Tensor:
    """Rotations of each pair of a head's features, so that scores depend on the steps between.

    Rotary positions (arXiv 2104.09864), slowed down to the context: pair i of h turns by
    K^(-i / h) radians a step. A head of one pair cannot tell steps apart that are 6.3 apart.

    Returns:
        (T, 1, D/2) complex numbers of length 1.
    """
    half = head_size // 2
    speeds = float(context_length) ** -(torch.arange(half, device=device) / half)
    angles = torch.arange(num_steps, device=device)[:, None, None] * speeds
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Turns neighbouring features of tokens (B, S, H, D) by (S, 1, D/2)."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2)


def attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float, p: float) -> Tensor:
    """Softmax attention.

    Args:
        q: (G, H, r, D) queries.
        k: (G, H, w, D) keys.
        v: (G, H, w, D) values.
        visible: (G, 1, r, w) whether a query sees a key; each sees one at least.
        scale: of the scores.
        p: dropout of the attention weights, 0 for none.

    Returns:
        (G, H, r, D).
    """
    # On a GPU in float32 plain matrix products are faster here than torch's fused kernel.
    products = not torch.is_autocast_enabled("cuda") if q.is_cuda else p > 0.0
    if not products:
        return F.scaled_dot_product_attention(q, k, v, visible, dropout_p=p, scale=scale)
    scores = (q * scale) @ k.transpose(-1, -2)
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return (dropout(weights, p) if p else weights) @ v


def dropout(x: Tensor, p: float) -> Tensor:
    """Zeroes entries with probability p and scales the others by 1 / (1 - p).

    On a CPU, torch's dropout draws one number per entry, which costs more than the attention
    that it is applied to; here one 64-bit number serves four entries, and p is rounded to 1/65536.
    """
    if x.is_cuda:
        return F.dropout(x, p)
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64)
    words.random_(-(1 << 63), None)  # all 64 bits
    numbers = words.view(torch.int16)[: x.numel()].view(x.shape)
    keep = (numbers >= round(p * _DROPOUT_LEVELS) - _DROPOUT_LEVELS // 2).to(x.dtype)
    return x * keep.mul_(1.0 / (1.0 - p))


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
    ) -> Tensor:
        """Hidden states at the state tokens of the last steps.

        Args:
            tokens: (B, T, n, C) embeddings of each step: of its state and, if n = 2, its action.
            segment_ids: (B, T) episode of each step.
            reaches: k_l of each layer, steps that a token looks back, its own included.
            num_values: V, number of last steps whose output is wanted.
            turns: of `rotations`, for relative time.

        Returns:
            (B, V, C) normalised hidden states.
        """
        num_steps, per_step = tokens.shape[1:3]
        x = self._drop(tokens.flatten(1, 2))  # (B, T*n, C)
        above = sum(reaches) - len(reaches)
        for layer, (block, reach) in enumerate(zip(self.h, reaches, strict=True)):
            above -= reach - 1
            num_rows = min(num_steps, num_values + above)  # R: what the layers above look at
            last = layer == len(self.h) - 1
            seen = band(segment_ids[:, -num_steps:], reach, num_rows, per_step, states_only=last)
            rows = slice(-num_rows * per_step, None, per_step if last else 1)
            x = self._block(block, x, rows, per_step, seen, turns)  # (B, R*n or R, C)
            num_steps = num_rows
        hidden: Tensor = self.ln_f(x[:, -num_values:])
        return hidden

    def _block(
        self, block: Any, x: Tensor, rows: slice, per_step: int, seen: Band, turns: Tensor | None
    ) -> Tensor:
        """One pre-norm block: rows of `x` (B, S*n, C) attend to all of it."""
        hidden = x[:, rows] + self._attend(block.attn, block.ln_1(x), rows, per_step, seen, turns)
        out: Tensor = hidden + self._drop(self._feed_forward(block.mlp, block.ln_2(hidden)))
        return out

    def _attend(
        self, attn: Any, x: Tensor, rows: slice, per_step: int, seen: Band, turns: Tensor | None
    ) -> Tensor:
        width, c_attn = self.n_embd, attn.c_attn
        of_q, of_kv = c_attn.weight.split((width, 2 * width), dim=1)  # (C, C), (C, 2C)
        bias_q, bias_kv = c_attn.bias.split((width, 2 * width))
        q = (x[:, rows] @ of_q + bias_q).unflatten(2, (self.n_head, -1))  # (B, R', H, D)
        kv = (x @ of_kv + bias_kv).chunk(2, dim=-1)
        k, v = (y.unflatten(2, (self.n_head, -1)) for y in kv)  # (B, S*n, H, D)
        if turns is not None:
            of_keys = turns[-(x.shape[1] // per_step) :].repeat_interleave(per_step, 0)
            q, k = rotate(q, of_keys[rows]), rotate(k, of_keys)
        num_rows = q.shape[1]
        q, k, v = (y.transpose(1, 2) for y in seen.windows(q, k, v))  # (B*N, H, r or w, D)
        y = attend(q, k, v, seen.visible, attn.scaling, self.dropout if self.training else 0.0)
        y = y.transpose(1, 2).reshape(x.shape[0], -1, width)  # (B, N*r, C)
        return self._drop(attn.c_proj(y[:, -num_rows:].contiguous()))

    def _feed_forward(self, mlp: Any, x: Tensor) -> Tensor:
        hidden = mlp.c_fc(x)  # (B, R, 4C)
        hidden = F.gelu(hidden, approximate="tanh") if self._tanh_gelu else mlp.act(hidden)
        out: Tensor = mlp.c_proj(hidden)  # (B, R, C)
        return out

    def _drop(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout) if self.training and self.dropout else x
