"""What the device reaches at best: large matrix products, and copies."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

DEVICE = "cuda"
MATMUL_SIZE = 8192
COPY_BYTES = 2**30


def seconds_per_call(call: Callable[[], object], calls: int) -> float:
    """Wall-clock seconds of a call, the device's queue empty before and after."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(calls):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / calls


def matmul_flop_per_s(dtype: torch.dtype) -> float:
    """FLOP a second of a large square product."""
    matrix = torch.randn(MATMUL_SIZE, MATMUL_SIZE, device=DEVICE, dtype=dtype)
    out = torch.empty_like(matrix)
    return 2 * MATMUL_SIZE**3 / seconds_per_call(lambda: torch.mm(matrix, matrix, out=out), 5)


def copy_bytes_per_s() -> float:
    """Bytes a second, read and written, of a large copy."""
    source = torch.zeros(COPY_BYTES, device=DEVICE, dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / seconds_per_call(lambda: target.copy_(source), 10)
