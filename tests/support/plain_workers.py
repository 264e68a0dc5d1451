"""Actors that a fleet takes for rollout workers; their processes import next to nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import ray

FAILS, HANGS = "fails", "hangs"


class Plain:
    """What a fleet needs of a worker.

    Args:
        folder: while a file `fails` or `hangs` is in it, no worker joins.
        index: of the worker.
    """

    def __init__(self, folder: Path, index: int) -> None:
        self._folder, self._state = folder, {"index": index}

    def join(self, state: Any) -> str:
        if (self._folder / FAILS).exists():
            raise RuntimeError("no licence")
        while (self._folder / HANGS).exists():
            time.sleep(0.05)
        self._state = state or self._state
        return str(ray.get_runtime_context().get_node_id())

    def get_rollout_state(self) -> Any:
        return self._state

    def request(self, num_vector_steps: int, broadcast: Any) -> None:
        os._exit(1)  # as an environment may that is a program of its own

    def stop(self) -> None:
        pass
