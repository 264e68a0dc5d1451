"""Settings of the process that learns or samples: threads, the allocator, collection, seeds."""

from __future__ import annotations

import ctypes
import gc
import os
import random
from typing import Any

import numpy as np
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
        num_threads: of torch's operators; torch's default would compete with rollout workers.
    """
    torch.set_num_threads(num_threads)
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def spare_the_collector() -> None:
    """Excludes everything loaded so far from garbage collection, since it stays until the end.

    Ray, RLlib and torch create about a million objects; scanning them repeatedly took a tenth of a
    short update.
    """
    if gc.get_freeze_count() == 0:
        gc.freeze()


def seed_process(seed: int) -> None:
    """Seeds what is random in this process, and asks torch for algorithms that repeat.

    RLlib's own seeding does the same by `torch.use_deterministic_algorithms`, which imports torch's
    compiler and sympy: as much CPU time as all other imports of a rollout worker.

    Args:
        seed: at least 0.
    """
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    if torch.version.cuda is None:
        torch.set_deterministic_debug_mode("error")
    else:  # where some have no such algorithm
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"


RandomState = tuple[Any, Any, torch.Tensor]


def random_state() -> RandomState:
    """State of this process's random generators, for trainings that take turns in it."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def set_random_state(state: RandomState) -> None:
    """Restores what `random_state` returned."""
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])
