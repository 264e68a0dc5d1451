"""The training pipeline: whole trainings, and its parts one by one, on this machine."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

import numpy as np
import ray
from ray.rllib.policy.sample_batch import DEFAULT_POLICY_ID, concat_samples

from rl_service.algorithms.build import build_algorithm
from rl_service.config.settings import Settings
from rl_service.rollout.fragments import LOSS_MASK
from rl_service.runtime.ray_session import ray_session
from rl_service.training.trainer import Trainer
from tests.benchmarks.subjects.settings import Variant, benchmark_settings

_ROW_TIMES = ("iteration_time_s", "sample_time_s", "learn_time_s", "learn_actor_time_s")


class Pipeline:
    """Trainings that take turns, and samplers in processes of their own.

    Args:
        variants: settings of the trainings, by name.
        samplers: settings of each sampler.
        num_samplers: how many there are.
    """

    def __init__(self, variants: dict[str, Variant], samplers: Variant, num_samplers: int) -> None:
        self._stack = ExitStack()
        settings = {name: benchmark_settings(variant) for name, variant in variants.items()}
        sampling = benchmark_settings(samplers)
        self._stack.enter_context(ray_session(sampling.resources))
        self._trainers = {name: Trainer(each) for name, each in settings.items()}
        for trainer in self._trainers.values():
            self._stack.callback(trainer.close)
        sampler = ray.remote(num_cpus=0)(Sampler)
        self._samplers = [sampler.remote(sampling) for _ in range(num_samplers)]
        for each in self._samplers:
            self._stack.callback(ray.kill, each)
        self._weights = ray.get(self._samplers[0].weights.remote())

    def close(self) -> None:
        self._stack.close()

    def train(self, name: str, iterations: int) -> dict[str, float]:
        """Trains on.

        Returns:
            Means over the iterations: env steps, and the seconds of the row's keys.
        """
        rows = [self._trainers[name].iterate() for _ in range(iterations)]
        steps = self._trainers[name].settings.algorithm.train_batch_size
        return {"env_steps": steps} | {
            key: sum(row[key] for row in rows) / iterations for key in _ROW_TIMES
        }

    def sample(self, vector_steps: int, together: bool) -> float:
        """Seconds that a sampler takes, alone or while all others do the same (their mean)."""
        samplers = self._samplers if together else self._samplers[:1]
        requests = [sampler.sample_s.remote(vector_steps) for sampler in samplers]
        return float(np.mean(ray.get(requests)))

    def request(self, vector_steps: int) -> dict[str, float]:
        """One request to one worker, as the learner makes it.

        Returns:
            Seconds of the driver's own work (`put_s`, `dispatch_s`, `collect_s`), of the worker's
            sampling (`sample_s`), of all together (`total_s`); bytes of what comes home and of
            the weights.
        """
        started = time.perf_counter()
        broadcast = ray.put(self._weights)
        put = time.perf_counter()
        answer = self._samplers[0].request.remote(broadcast, vector_steps)
        dispatched = time.perf_counter()
        ray.wait([answer])
        arrived = time.perf_counter()
        batch, sample_s = ray.get(answer)
        got = time.perf_counter()
        concat_samples([batch, batch])
        join_s = (time.perf_counter() - got) / 2
        return {
            "put_s": put - started,
            "dispatch_s": dispatched - put,
            "collect_s": got - arrived + join_s,
            "sample_s": sample_s,
            "total_s": got - started + join_s,
            "env_steps": int(batch[LOSS_MASK].sum()),
            "batch_bytes": sum(column.nbytes for column in dict(batch).values()),
            "weight_bytes": sum(each.nbytes for each in self._weights.values()),
        }


class Sampler:
    """A rollout worker's sampler in a process of its own, which times itself."""

    def __init__(self, settings: Settings) -> None:
        self._worker = build_algorithm(settings).env_runner

    def weights(self) -> Any:
        """Of the actor."""
        return self._worker.policy_map[DEFAULT_POLICY_ID].get_weights()

    def sample_s(self, vector_steps: int) -> float:
        """Seconds of sampling."""
        started = time.perf_counter()
        self._worker.sample(vector_steps)
        return time.perf_counter() - started

    def request(self, weights: Any, vector_steps: int) -> tuple[Any, float]:
        """Takes the weights, samples; the batch, and the seconds of sampling."""
        self._worker.policy_map[DEFAULT_POLICY_ID].set_weights(weights)
        started = time.perf_counter()
        batch = self._worker.sample(vector_steps)
        return batch, time.perf_counter() - started
