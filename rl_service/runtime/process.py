"""Settings of the process that learns or samples: threads, the allocator, collection, seeds."""

from __future__ import annotations

import ctypes
import gc
import os
import random
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc refuses more
_KEPT_BYTES = 512 * 2**20


def prepare_process(num_threads: int) -> None:
    """Sets the threads of torch and NumPy, and lets freed memory stay with the process.

    glibc hands large blocks back to the kernel as soon as they are free, and a critic's pass
    frees and asks for the same few megabytes hundreds of times a second: the page faults took up
    to half of the pass. Without glibc nothing is changed.

    Args:
        num_threads: of an operator; by default one would take all cores, which other processes
            need, too.
    """
    torch.set_num_threads(num_threads)
    # NumPy's library reads `OMP_NUM_THREADS` when it is loaded, and a forked process finds it so.
    threadpool_limits(num_threads, user_api="blas")
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


TorchRandomState = dict[str, Any]
"""`cpu`, and `cuda` if there is a GPU: plain arrays."""


def torch_random_state(device: torch.device) -> TorchRandomState:
    """State of torch's generators in a process that learns on a device."""
    cuda = torch.cuda.get_rng_state(device).numpy() if device.type == "cuda" else None
    return {"cpu": torch.get_rng_state().numpy(), "cuda": cuda}


def set_torch_random_state(state: TorchRandomState, device: torch.device) -> None:
    """Restores what `torch_random_state` returned, also on another kind of device."""
    torch.set_rng_state(torch.from_numpy(np.array(state["cpu"])))
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(torch.from_numpy(np.array(state["cuda"])), device)


RandomState = tuple[Any, Any, torch.Tensor]


def random_state() -> RandomState:
    """State of this process's random generators, for trainings that take turns in it."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def set_random_state(state: RandomState) -> None:
    """Restores what `random_state` returned."""
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])
