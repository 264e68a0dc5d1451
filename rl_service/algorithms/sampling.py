"""One batch of fixed size from whatever rollout workers live."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import ray
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.evaluation.metrics import RolloutMetrics
from ray.rllib.policy.sample_batch import DEFAULT_POLICY_ID, SampleBatch, concat_samples

from rl_service.config.settings import Settings
from rl_service.errors import TrainingFailedError
from rl_service.rollout.filters import RunningFilter
from rl_service.rollout.fragments import LOSS_MASK
from rl_service.rollout.worker import VectorRolloutWorker

logger = logging.getLogger(__name__)

RESTART_DEADLINE_S = 180.0
"""How long a run without any live worker waits for one."""


class Samples(NamedTuple):
    """A whole batch."""

    batch: SampleBatch
    episodes: list[RolloutMetrics]
    time_s: float


class _Sampled(NamedTuple):
    """What one worker brings home."""

    batch: SampleBatch
    filters: dict[str, RunningFilter]
    """Statistics; their buffers hold what this worker has seen since the last request."""
    episodes: list[RolloutMetrics]


class BatchSampler:
    """Deals the vector steps of a batch to an algorithm's live workers.

    Args:
        algorithm: whose workers sample; without any, its own process does.
        settings: of the run.
    """

    def __init__(self, algorithm: Algorithm, settings: Settings) -> None:
        self._algorithm = algorithm
        self._settings = settings

    def sample(self) -> Samples:
        """Rows of fragments that hold the steps of one update, whoever sampled them.

        Vector steps are dealt evenly to the live workers. What a dying worker leaves undone is
        dealt again to the others, so the batch size never depends on faults.
        """
        resources = self._settings.resources
        num_steps = self._settings.env_steps_per_update // resources.num_envs_per_env_runner
        started = time.perf_counter()
        if resources.num_env_runners:
            parts = self._sample_on_workers(num_steps)
        else:
            parts = [self._sample_here(num_steps)]
        return Samples(
            batch=concat_samples([part.batch for part in parts]),
            episodes=[episode for part in parts for episode in part.episodes],
            time_s=time.perf_counter() - started,
        )

    def _sample_on_workers(self, num_vector_steps: int) -> list[_Sampled]:
        num_envs = self._settings.resources.num_envs_per_env_runner
        broadcast = self._put_broadcast()
        parts: list[_Sampled] = []
        while num_vector_steps > 0:
            for part in self._sample_round(num_vector_steps, broadcast):
                num_vector_steps -= int(part.batch[LOSS_MASK].sum()) // num_envs
                parts.append(part)
        return parts

    def _put_broadcast(self) -> Any:
        """Weights and merged filters, once in the object store for all workers."""
        local: VectorRolloutWorker = self._algorithm.env_runner
        weights = local.policy_map[DEFAULT_POLICY_ID].get_weights()
        return ray.put((weights, local.get_filters()))

    def _sample_round(self, num_vector_steps: int, broadcast: Any) -> list[_Sampled]:
        local: VectorRolloutWorker = self._algorithm.env_runner
        worker_ids = self._live_workers()
        shares = [len(part) for part in np.array_split(range(num_vector_steps), len(worker_ids))]
        busy = [(w, n) for w, n in zip(worker_ids, shares, strict=True) if n]
        results = self._algorithm.env_runner_group.foreach_env_runner(
            [_sample_request(n, broadcast) for _, n in busy],
            local_env_runner=False,
            remote_worker_ids=[w for w, _ in busy],
        )
        for sampled in results:
            if isinstance(sampled, str):
                raise TrainingFailedError(sampled)
            for name, changed in sampled.filters.items():
                local.filters[name].apply_changes(changed)
        return list(results)

    def _sample_here(self, num_vector_steps: int) -> _Sampled:
        local: VectorRolloutWorker = self._algorithm.env_runner
        try:
            batch: SampleBatch = local.sample(num_vector_steps)
        except Exception as error:
            raise TrainingFailedError(_env_failure("the sampler", error)) from error
        return _Sampled(batch, local.get_filters(flush_after=True), local.get_metrics())

    def _live_workers(self) -> list[int]:
        """Ids of healthy workers; waits for restarted ones if none is left.

        Raises:
            TrainingFailedError: if no worker comes back.
        """
        group = self._algorithm.env_runner_group
        deadline = time.monotonic() + RESTART_DEADLINE_S
        ids: list[int] = group.healthy_worker_ids()
        while not ids:
            if time.monotonic() > deadline:
                raise TrainingFailedError(
                    "all rollout workers are lost and none came back; "
                    "look for the reason in the run's log, then go on with --resume"
                )
            if not self._algorithm.restore_env_runners(group):
                time.sleep(1.0)
            ids = group.healthy_worker_ids()
        return ids


def pack(samples: Samples) -> dict[str, Any]:
    """Plain values for a checkpoint."""
    episodes = [(episode.episode_length, episode.episode_reward) for episode in samples.episodes]
    return {"batch": dict(samples.batch), "episodes": episodes, "time_s": samples.time_s}


def unpack(packed: dict[str, Any]) -> Samples:
    """What `pack` was given."""
    episodes = [RolloutMetrics(length, reward) for length, reward in packed["episodes"]]
    return Samples(SampleBatch(packed["batch"]), episodes, packed["time_s"])


def _sample_request(
    num_vector_steps: int, broadcast: Any
) -> Callable[[VectorRolloutWorker], _Sampled | str]:
    """One round trip: brings weights and filters, samples, takes home what was seen.

    An exception comes home as a text: raised inside the actor it would make RLlib wait a minute
    and replace the worker, to fail in the same way again.
    """

    def request(worker: VectorRolloutWorker) -> _Sampled | str:
        weights, filters = ray.get(broadcast)
        worker.policy_map[DEFAULT_POLICY_ID].set_weights(weights)
        worker.sync_filters(filters)
        try:
            batch = worker.sample(num_vector_steps)
        except Exception as error:
            logger.exception("sampling failed")
            return _env_failure(f"rollout worker {worker.worker_index}", error)
        return _Sampled(batch, worker.get_filters(flush_after=True), worker.get_metrics())

    return request


def _env_failure(who: str, error: Exception) -> str:
    return (
        f"{who} failed in its environment: {type(error).__name__}: {error}; "
        f"mend the environment, then go on from the last checkpoint with --resume"
    )
