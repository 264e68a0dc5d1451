"""Dropout that is cheap on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

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
