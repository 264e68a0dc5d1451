"""A training whose rollout workers somebody kills."""

from __future__ import annotations

import os
import random
import signal
from contextlib import ExitStack
from typing import Any

from rl_service.runtime.ray_session import ray_session
from rl_service.training.trainer import Trainer
from tests.benchmarks.subjects.settings import Variant, benchmark_settings
from tests.support.rays import worker_pids

_KEPT = ("num_env_runners", "num_worker_restarts", "weights_lag", "episode_return_mean")


class DisturbedTraining:
    """One training in a Ray of its own."""

    def __init__(self, variant: Variant, seed: int) -> None:
        settings = benchmark_settings(variant)
        self._random = random.Random(seed)
        self._stack = ExitStack()
        self._stack.enter_context(ray_session(settings.resources))
        self._trainer = Trainer(settings)
        self._stack.callback(self._trainer.close)

    def close(self) -> None:
        self._stack.close()

    def train(self, iterations: int, kill_every: float | None) -> list[dict[str, Any]]:
        """Trains on.

        Args:
            iterations: to do.
            kill_every: mean iterations between two kills; None leaves the workers in peace.

        Returns:
            One row an iteration, with the kills after it.
        """
        rows: list[dict[str, Any]] = []
        before = self._trainer.algo.env_steps
        for _ in range(iterations):
            row = self._trainer.iterate()
            steps = self._trainer.algo.env_steps
            kept = {key: row[key] for key in _KEPT}
            kills = kill_every is not None and self._random.random() < 1.0 / kill_every
            rows.append(
                {
                    **kept,
                    "num_sampling_workers": self._trainer.algo.num_sampling_workers,
                    "batch": steps - before,
                    "iteration_time_s": row["iteration_time_s"],
                    "killed": self._kill_one() if kills else 0,
                }
            )
            before = steps
        return rows

    def _kill_one(self) -> int:
        pids = sorted(worker_pids())
        if not pids:
            return 0
        os.kill(self._random.choice(pids), signal.SIGKILL)
        return 1
