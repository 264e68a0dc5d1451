"""Settings of the process that learns or samples: threads, the allocator, garbage collection."""

from __future__ import annotations

import ctypes
import gc

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc refuses more
_KEPT_BYTES = 512 * 2**20


def prepare_process(num_threads: int) -> None:
    """Sets torch's threads, and lets freed memory stay with the process.

    glibc hands large blocks back to the kernel as soon as they are free, and a critic's pass
    frees and asks for the same few megabytes hundreds of times a second: the page faults took up
    to half of the pass. Without glibc nothing is changed.

    Args:
        num_threads: of torch's operators; torch's default would fight the rollout workers.
    """
    torch.set_num_threads(num_threads)
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def spare_the_collector() -> None:
    """Lets garbage collection pass over what is loaded by now, which stays till the end.

    Ray, RLlib and torch leave about a million objects behind; looking through them again and
    again took a tenth of a short update.
    """
    if gc.get_freeze_count() == 0:
        gc.freeze()
