"""Attention of blocks of queries over sliding windows of keys.

On a CPU, memory decides: a head of 8 features (as in GPT2PPO) does 16 FLOP a score in a
product, so scores that leave the cache cost more than their arithmetic. They are therefore made
block by block and head by head, as in FlashAttention (arXiv 2205.14135): never stored, made again
for the gradient. Scores lie keys by queries, so that every product has few rows and many columns
or a short inner dimension, and reductions over the keys run along rows.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_TILE_SCORES = 1 << 18
"""Most scores of a tile, unless a single head has more."""
_LOG2_E = math.log2(math.e)
"""2^x takes 0.4 times as long as e^x."""


def block_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, step: int, dropout: float
) -> Tensor:
    """Softmax attention; the window of a block of queries ends where the block ends.

    Blocks end with the keys: the window of block n are the last w keys before key
    S - (N - 1 - n) * step, as far as there are keys.

    Args:
        q: (B, N, H, D, r) queries, already scaled; N blocks of r.
        k: (B, S, H, D) keys.
        v: (B, S, H, D) values.
        mask: (B, N, w, r) added to the scores, windows are w wide: 0 where a query sees the key,
            else so negative that nothing is left.
        step: keys of a block.
        dropout: of the attention weights, 0 for none.

    Returns:
        (B, N, H, D, r).
    """
    if q.is_cuda:
        return _fused(q, k, v, mask, step, dropout)
    out: Tensor = _BlockAttention.apply(q, k, v, mask, step, dropout)  # type: ignore[no-untyped-call]
    return out


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, step: int, dropout: float) -> Tensor:
    """The same with torch's fused kernel, for devices that have one."""
    width, num_blocks = mask.shape[2], mask.shape[1]
    query = q.flatten(0, 1).transpose(-1, -2)  # (B*N, H, r, D)
    key, value = (_windows(x, width, step, num_blocks) for x in (k, v))  # (B*N, H, w, D)
    bias = mask.flatten(0, 1).transpose(1, 2).unsqueeze(1).to(query.dtype)  # (B*N, 1, r, w)
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=bias.contiguous(), dropout_p=dropout, scale=1.0
    )
    blocks: Tensor = out.transpose(-1, -2).view(q.shape)
    return blocks


def _windows(x: Tensor, width: int, step: int, num_blocks: int) -> Tensor:
    """(B, S, H, D) -> (B*N, H, w, D), filled with zeros before the first key."""
    needed = width + (num_blocks - 1) * step
    x = F.pad(x, (0, 0, 0, 0, max(needed - x.shape[1], 0), 0))[:, -needed:]
    windows = x.unfold(1, width, step)  # (B, N, H, D, w)
    if torch.is_autocast_enabled(x.device.type):
        return windows.transpose(-1, -2).flatten(0, 1)
    # In float32 torch's products are faster here than its fused kernel, compiled ones by far. Keys
    # last in memory make it take them.
    return windows.flatten(0, 1).transpose(-1, -2)


class _Tiles:
    """Cuts tensors into tiles: some heads (g) of one block and its window."""

    def __init__(self, q: Tensor, num_keys: int, mask: Tensor, step: int) -> None:
        num_blocks, width, num_queries = mask.shape[1:]
        ends = (num_keys - (num_blocks - 1 - n) * step for n in range(num_blocks))
        self._spans = [(max(0, end - width), min(width, end)) for end in ends]  # start, length
        num_heads = q.shape[2]
        most = max(1, _TILE_SCORES // (width * num_queries))
        self._heads = max(g for g in range(1, num_heads + 1) if num_heads % g == 0 and g <= most)
        masks = (m[-length:] for b in mask for m, (_, length) in zip(b, self._spans, strict=True))
        repeats = num_heads // self._heads
        self.masks = [m for m in masks for _ in range(repeats)]  # (keys, r)

    def of_queries(self, x: Tensor) -> tuple[Tensor, ...]:
        """(g, D, r) each, of (B, N, H, D, r)."""
        tiles: tuple[Tensor, ...] = x.flatten(0, 2).split(self._heads)
        return tiles

    def of_keys(self, x: Tensor, dim: int) -> list[Tensor]:
        """Views of (B, H, …), cut to the windows' keys along `dim` of (H, …)."""
        return [
            tile
            for item in x.unbind()
            for start, length in self._spans
            for tile in item.narrow(dim, start, length).split(self._heads)
        ]


class _BlockAttention(torch.autograd.Function):
    """Forward and backward, tile by tile."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, step: int, dropout: float
    ) -> Tensor:
        q, mask = q.contiguous(), mask.to(q.dtype)
        tiles = _Tiles(q, k.shape[1], mask, step)
        queries = tiles.of_queries(q * _LOG2_E)  # (g, D, r) each
        keys, values = (tiles.of_keys(x.transpose(1, 2), 1) for x in (k, v))  # (g, keys, D) each
        out, log_totals, keeps = [], [], []
        for bias, query, key, value in zip(tiles.masks, queries, keys, values, strict=True):
            scores = torch.baddbmm(bias, key, query)  # (g, keys, r)
            top = scores.amax(1, keepdim=True)  # (g, 1, r)
            weights = scores.sub_(top).exp2_()
            total = weights.sum(1, keepdim=True)
            if dropout:
                keeps.append(keep_mask(weights, dropout))
                weights.mul_(keeps[-1])
            out.append(torch.bmm(value.transpose(1, 2), weights).div_(total))  # (g, D, r)
            log_totals.append(total.log2_().add_(top))
        result = torch.cat(out).view(q.shape)
        ctx.save_for_backward(q, k, v, mask, result)
        ctx.step, ctx.log_totals, ctx.keeps = step, log_totals, keeps
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, result = ctx.saved_tensors
        tiles = _Tiles(q, k.shape[1], mask, ctx.step)
        keys, values = (tiles.of_keys(x.transpose(1, 2), 1) for x in (k, v))  # (g, keys, D) each
        grad_k, grad_v = (x.new_zeros(x.permute(0, 2, 3, 1).shape) for x in (k, v))  # (B, H, D, S)
        key_grads, value_grads = (tiles.of_keys(x, 2) for x in (grad_k, grad_v))
        queries, scaled = tiles.of_queries(q), tiles.of_queries(q * _LOG2_E)
        out_grads = tiles.of_queries(grad.contiguous())
        mean_grads = tiles.of_queries((grad * result).sum(3, keepdim=True))  # (g, 1, r) each
        grad_queries = []
        for i, bias in enumerate(tiles.masks):
            weights = torch.baddbmm(bias, keys[i], scaled[i])  # (g, keys, r), scores as yet
            weights.sub_(ctx.log_totals[i]).exp2_()
            grad_scores = torch.bmm(values[i], out_grads[i])  # (g, keys, r), of the weights as yet
            used = weights
            if ctx.keeps:
                used = weights * ctx.keeps[i]
                grad_scores.mul_(ctx.keeps[i])
            grad_scores.sub_(mean_grads[i]).mul_(weights)
            value_grads[i].add_(torch.bmm(out_grads[i], used.transpose(1, 2)))  # (g, D, keys)
            key_grads[i].add_(torch.bmm(queries[i], grad_scores.transpose(1, 2)))
            grad_queries.append(torch.bmm(keys[i].transpose(1, 2), grad_scores))  # (g, D, r)
        grad_q = torch.cat(grad_queries).view(q.shape)
        token_first = (x.permute(0, 3, 1, 2) for x in (grad_k, grad_v))
        return (grad_q, *token_first, None, None, None)


_LEVELS = 1 << 16


def keep_mask(x: Tensor, p: float) -> Tensor:
    """Factors like `x`: 0 with probability p, else 1 / (1 - p).

    On a CPU, torch's dropout draws one number per entry, which costs more than the attention
    that it is applied to; here one 64-bit number serves four entries, and p is rounded to 1/65536.

    Args:
        x: gives shape and type.
        p: 0 <= p < 1.
    """
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64)
    words.random_(-(1 << 63), None)  # all 64 bits
    numbers = words.view(torch.int16)[: x.numel()].view(x.shape)
    keep = (numbers >= round(p * _LEVELS) - _LEVELS // 2).to(x.dtype)
    return keep.mul_(1.0 / (1.0 - p))


def dropout(x: Tensor, p: float) -> Tensor:
    """Zeroes entries with probability p and scales the others by 1 / (1 - p)."""
    return F.dropout(x, p) if x.is_cuda else x * keep_mask(x, p)
