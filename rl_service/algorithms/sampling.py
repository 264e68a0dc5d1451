"""One batch of fixed size from whatever rollout workers live."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import ray
from ray.exceptions import RayError
from ray.rllib.evaluation.metrics import RolloutMetrics
from ray.rllib.policy.sample_batch import DEFAULT_POLICY_ID, SampleBatch, concat_samples

from rl_service.config.settings import Settings
from rl_service.envs.failures import FailedEpisode
from rl_service.errors import TrainingFailedError
from rl_service.rollout.fleet import Fleet, Worker, reason_of
from rl_service.rollout.fragments import LOSS_MASK
from rl_service.rollout.worker import Broadcast, Sampled, VectorRolloutWorker

_ANSWER_TIMEOUT_S = 10.0
"""For a worker to say that it is alive."""


class Samples(NamedTuple):
    """A whole batch."""

    batch: SampleBatch
    episodes: list[RolloutMetrics]
    failures: list[FailedEpisode]
    time_s: float
    num_workers: int
    """Rollout workers that sampled it; 0 if the learner's own process did."""
    weights_version: int
    """Of the oldest weights that sampled a part of it, in updates of the actor."""


class BatchSampler:
    """Deals the vector steps of a batch to the workers that are ready.

    Args:
        local: the learner's own worker, which has the weights and merges the filters; it samples
            itself if there is no fleet.
        fleet: the rollout workers.
        settings: of the run.
    """

    def __init__(self, local: VectorRolloutWorker, fleet: Fleet | None, settings: Settings) -> None:
        self._local = local
        self._fleet = fleet
        self._settings = settings

    def sample(self, weights_version: int) -> Samples:
        """Rows of fragments that hold the steps of one update, whoever sampled them.

        Vector steps are dealt evenly to the workers. What a dying or hung worker leaves undone is
        dealt again to the others, so the batch size depends neither on their number nor on faults.

        Args:
            weights_version: updates that the learner's actor has behind it.

        Raises:
            TrainingFailedError: if an environment fails or no worker is left.
        """
        resources = self._settings.resources
        num_steps = self._settings.env_steps_per_update // resources.num_envs_per_env_runner
        started = time.perf_counter()
        if self._fleet is None:
            parts = [self._sample_here(num_steps, weights_version)]
        else:
            parts = self._sample_on(self._fleet, num_steps, weights_version)
        return Samples(
            batch=concat_samples([part.batch for part in parts]),
            episodes=[episode for part in parts for episode in part.episodes],
            failures=[failure for part in parts for failure in part.failures],
            time_s=time.perf_counter() - started,
            num_workers=len({part.worker_index for part in parts if part.worker_index}),
            weights_version=min(part.weights_version for part in parts),
        )

    def _sample_here(self, num_vector_steps: int, weights_version: int) -> Sampled:
        self._local.weights_version = weights_version
        return self._local.sample_and_report(num_vector_steps)

    def _sample_on(self, fleet: Fleet, num_vector_steps: int, version: int) -> list[Sampled]:
        num_envs = self._settings.resources.num_envs_per_env_runner
        weights = self._local.policy_map[DEFAULT_POLICY_ID].get_weights()
        # Once in the object store for all workers.
        broadcast = ray.put(Broadcast(weights, self._local.get_filters(), version))
        parts: list[Sampled] = []
        while num_vector_steps > 0:
            fleet.poll()
            fleet.wait_until_ready()
            for part in self._sample_round(fleet, num_vector_steps, broadcast):
                num_vector_steps -= int(part.batch[LOSS_MASK].sum()) // num_envs
                parts.append(part)
        return parts

    def _sample_round(self, fleet: Fleet, num_vector_steps: int, broadcast: Any) -> list[Sampled]:
        """Asks each worker once; returns what has come home, in the order of their indices."""
        workers = list(fleet.ready.values())
        shares = [len(part) for part in np.array_split(range(num_vector_steps), len(workers))]
        asked = {
            worker.actor.request.remote(share, broadcast): worker
            for worker, share in zip(workers, shares, strict=True)
            if share
        }
        parts = [self._take(fleet, worker, ref) for ref, worker in self._wait(fleet, asked)]
        return [part for part in parts if part is not None]

    def _wait(self, fleet: Fleet, asked: dict[Any, Worker]) -> Iterable[tuple[Any, Worker]]:
        """Waits for all answers; whoever shows no sign of life is lost on the way."""
        timeout_s = self._settings.resources.worker_timeout_s
        waiting = list(asked)
        while waiting:
            _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=timeout_s)
            for ref in [ref for ref in waiting if _idle_s(asked[ref]) > timeout_s]:
                waiting.remove(ref)
                fleet.lose(asked.pop(ref).index, f"it finished no step in {timeout_s:g} s")
        return asked.items()

    def _take(self, fleet: Fleet, worker: Worker, ref: Any) -> Sampled | None:
        """What a worker brought home, its filters merged; None if it is lost."""
        try:
            sampled: Sampled = ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            raise _failure(worker, error) from error
        except RayError as error:
            fleet.lose(worker.index, reason_of(error))
            return None
        for name, changed in sampled.filters.items():
            self._local.filters[name].apply_changes(changed)
        return sampled


def _idle_s(worker: Worker) -> float:
    """Seconds since a worker's last step; no answer means that it died or stands still."""
    try:
        idle_s: float = ray.get(worker.actor.seconds_since_step.remote(), timeout=_ANSWER_TIMEOUT_S)
    except RayError:
        return math.inf
    return idle_s


def pack(samples: Samples) -> dict[str, Any]:
    """Plain values for a checkpoint."""
    episodes = [(episode.episode_length, episode.episode_reward) for episode in samples.episodes]
    failures = [failure._asdict() for failure in samples.failures]
    plain = {"batch": dict(samples.batch), "episodes": episodes, "failures": failures}
    return samples._asdict() | plain


def unpack(packed: dict[str, Any]) -> Samples:
    """What `pack` was given."""
    episodes = [RolloutMetrics(length, reward) for length, reward in packed["episodes"]]
    failures = [FailedEpisode(**failure) for failure in packed["failures"]]
    batch = SampleBatch(packed["batch"])
    return Samples(**packed | {"batch": batch, "episodes": episodes, "failures": failures})


def _failure(worker: Worker, error: ray.exceptions.RayTaskError) -> TrainingFailedError:
    """A worker that raises would raise again in another process."""
    if isinstance(error.cause, TrainingFailedError):
        return TrainingFailedError(str(error.cause))
    return TrainingFailedError(
        f"rollout worker {worker.index} failed: {reason_of(error)}; look for its traceback in the "
        f"log, then go on from the last checkpoint with --resume"
    )
