"""Attention of blocks of queries over sliding windows of keys.

Everything is laid out feature-first, (..., D, tokens): heads are narrow (8 features in the GPT2PPO
seed), and a matrix product whose result is D rows by many columns runs about four times as fast on
a CPU as one with many rows by D columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from custom_models.dropout import keep_mask


def block_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, step: int, dropout: float
) -> Tensor:
    """Softmax attention; block n sees the keys of window n.

    Args:
        q: (B, H, N, D, r) queries, already scaled; N blocks of r.
        k: (B, H, D, S) keys.
        v: (B, H, D, S) values.
        mask: (B, 1, N, r, w) added to the scores; windows are w wide.
        step: keys between the starts of two windows; S = w + (N - 1) * step.
        dropout: of the attention weights, 0 for none.

    Returns:
        (B, H, N, D, r).
    """
    if q.is_cuda:
        return _fused(q, k, v, mask, step, dropout)
    out: Tensor = _BlockAttention.apply(q, k, v, mask, step, dropout)  # type: ignore[no-untyped-call]
    return out


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, step: int, dropout: float) -> Tensor:
    """The same with torch's fused kernel, for devices where memory traffic decides."""
    width = mask.shape[-1]
    rows = (x.transpose(-1, -2) for x in (q, _windows(k, width, step), _windows(v, width, step)))
    query, key, value = (x.transpose(1, 2).flatten(0, 1) for x in rows)  # (B*N, H, tokens, D)
    bias = mask.transpose(1, 2).flatten(0, 1).to(query.dtype)  # (B*N, 1, r, w)
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=bias, dropout_p=dropout, scale=1.0
    )
    blocks: Tensor = out.unflatten(0, (q.shape[0], -1)).transpose(1, 2).transpose(-1, -2)
    return blocks


def _windows(x: Tensor, width: int, step: int) -> Tensor:
    """(B, H, D, S) -> (B, H, N, D, w)."""
    return x.unfold(-1, width, step).transpose(2, 3)


class _BlockAttention(torch.autograd.Function):
    """Forward and backward as six batched products in the fast layout."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, step: int, dropout: float
    ) -> Tensor:
        width, shape = mask.shape[-1], q.shape
        q = q.flatten(0, 2)  # (G, D, r), G = B * H * N
        k_windows = _windows(k, width, step).flatten(0, 2)  # (G, D, w)
        v_windows = _windows(v, width, step).flatten(0, 2)  # (G, D, w)
        scores = torch.bmm(q.transpose(1, 2), k_windows)  # (G, r, w)
        scores.view(*shape[:3], shape[4], width).add_(mask)
        weights = torch.softmax(scores, dim=-1)  # (G, r, w)
        keep = keep_mask(weights, dropout) if dropout else None
        used = weights if keep is None else weights * keep
        out = torch.bmm(v_windows, used.transpose(1, 2))  # (G, D, r)
        ctx.save_for_backward(q, k_windows, v_windows, weights, keep)
        ctx.shape, ctx.step, ctx.num_keys = shape, step, k.shape[-1]
        return out.view(shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k_windows, v_windows, weights, keep = ctx.saved_tensors
        grad = grad.flatten(0, 2)  # (G, D, r)
        used = weights if keep is None else weights * keep
        grad_v = torch.bmm(grad, used)  # (G, D, w)
        grad_used = torch.bmm(grad.transpose(1, 2), v_windows)  # (G, r, w)
        grad_weights = grad_used if keep is None else grad_used.mul_(keep)
        grad_scores = torch.ops.aten._softmax_backward_data(
            grad_weights, weights, -1, weights.dtype
        )  # (G, r, w)
        grad_q = torch.bmm(k_windows, grad_scores.transpose(1, 2))  # (G, D, r)
        grad_k = torch.bmm(q, grad_scores)  # (G, D, w)
        return (
            grad_q.view(ctx.shape),
            _overlap_add(grad_k, ctx.shape, ctx.step, ctx.num_keys),
            _overlap_add(grad_v, ctx.shape, ctx.step, ctx.num_keys),
            None,
            None,
            None,
        )


def _overlap_add(windows: Tensor, shape: tuple[int, ...], step: int, num_keys: int) -> Tensor:
    """Sums windows (G, D, w) where they overlap: the transpose of `_windows`."""
    batch, heads, num_blocks, features, _ = shape
    width = windows.shape[-1]
    windows = windows.view(batch, heads, num_blocks, features, width)
    out = windows.new_zeros(batch, heads, features, num_keys)
    for n in range(num_blocks):
        out[..., n * step : n * step + width] += windows[:, :, n]
    return out
