"""Our algorithms, several at once in one Ray, which train in turn."""

from __future__ import annotations

import time
from contextlib import ExitStack

from rl_service.algorithms.build import build_algorithm
from rl_service.rollout.fragments import LOSS_MASK
from rl_service.runtime.ray_session import ray_session
from tests.benchmarks.subjects.settings import Variant, benchmark_settings


class Trainings:
    """Builds one algorithm per variant; `train` goes on with the named one."""

    def __init__(self, variants: dict[str, Variant]) -> None:
        self._stack = ExitStack()
        settings = {name: benchmark_settings(variant) for name, variant in variants.items()}
        resources = [each.resources for each in settings.values()]
        self._stack.enter_context(ray_session(max(resources, key=lambda each: each.num_gpus)))
        self.algorithms = {name: build_algorithm(each) for name, each in settings.items()}
        for algorithm in self.algorithms.values():
            self._stack.callback(algorithm.stop)

    def close(self) -> None:
        self._stack.close()

    def fill(self, name: str, vector_steps: int) -> None:
        """Lets the env of a run without rollout workers go on, so that its context is full."""
        self.algorithms[name].env_runner.sample(vector_steps)

    def sample(self, name: str) -> float:
        """Env steps a second of a batch that nothing learns from."""
        algorithm = self.algorithms[name]
        algorithm.start_workers()
        sampled = algorithm._sample()
        return float(sampled.batch[LOSS_MASK].sum()) / sampled.time_s

    def train(self, name: str, iterations: int) -> dict[str, float]:
        """Trains on.

        Returns:
            Env steps a second, and the seconds of sampling and learning per env step; of learning,
            also those of the actor alone.
        """
        algorithm = self.algorithms[name]
        steps_before, started = algorithm.env_steps, time.perf_counter()
        learner = [algorithm.train()["info"]["learner"] for _ in range(iterations)]
        elapsed = time.perf_counter() - started
        steps = algorithm.env_steps - steps_before
        seconds = {
            "sample_s_per_step": "sample_time_s",
            "learn_s_per_step": "learn_time_s",
            "learn_actor_s_per_step": "learn_actor_time_s",
        }
        return {
            "env_steps_per_s": steps / elapsed,
            **{ours: sum(row[name] for row in learner) / steps for ours, name in seconds.items()},
        }
