"""One batch of fixed size from the rollout workers that are alive."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar

import numpy as np
import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError, RayTaskError, UnserializableException
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.evaluation.metrics import RolloutMetrics
from ray.rllib.policy.sample_batch import DEFAULT_POLICY_ID, SampleBatch, concat_samples
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rl_service.common.errors import TrainingFailedError
from rl_service.config.settings import ResourceSettings, Settings
from rl_service.rollout.env_failures import FailedEpisode
from rl_service.rollout.fleet import Fleet, Worker, all_lost
from rl_service.rollout.fragments import LOSS_MASK
from rl_service.rollout.inference import Inference
from rl_service.rollout.starting import reason_of
from rl_service.rollout.worker import HEALTH, Broadcast, Samples, VectorRolloutWorker

_ANSWER_TIMEOUT_S = 10.0
"""Time for workers to answer that they are alive."""
_LEAST_WAIT_S = 1.0
"""Time between two such questions."""


class BatchSampler:
    """Divides the vector steps of a batch among the workers that are ready.

    Args:
        local: the learner's own worker, which has the weights and merges the filters; it samples
            itself if there is no fleet.
        fleet: the rollout workers.
        inference: whom the rollout workers ask, if they do.
        settings: of the run.
    """

    def __init__(
        self,
        local: VectorRolloutWorker,
        fleet: Fleet | None,
        inference: Inference | None,
        settings: Settings,
    ) -> None:
        self._local = local
        self._fleet = fleet
        self._inference = inference
        self._settings = settings
        self._has_raised = False
        """Whether a worker has raised while this batch was sampled."""

    def sample(self, weights_version: int) -> Samples:
        """Rows of fragments that hold the steps of one update, whoever sampled them.

        Vector steps are divided evenly among the workers. What a dying or hung worker leaves undone
        goes to the others, so the batch size depends neither on their number nor on faults.

        Args:
            weights_version: updates of the learner's actor so far.

        Raises:
            TrainingFailedError: if too many episodes fail in their environment, or a second worker
                raises.
            WorkersLostError: if no worker returns anything for too long.
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
            workers={index for part in parts for index in part.workers},
            weights_version=min(part.weights_version for part in parts),
            time_s=time.perf_counter() - started,
        )

    def _sample_here(self, num_vector_steps: int, weights_version: int) -> Samples:
        self._local.weights_version = weights_version
        return self._local.sample_and_report(num_vector_steps)

    def _sample_on(self, fleet: Fleet, num_vector_steps: int, version: int) -> list[Samples]:
        num_envs = self._settings.resources.num_envs_per_env_runner
        weights = self._local.policy_map[DEFAULT_POLICY_ID].get_weights()
        if self._inference is not None:
            weights = ray.put(weights)
        # Once in the object store for all workers.
        broadcast = ray.put(Broadcast(weights, self._local.get_filters(), version))
        parts: list[Samples] = []
        self._has_raised = False
        barren_since: float | None = None
        while num_vector_steps > 0:
            fleet.poll()
            fleet.wait_until_ready()
            brought = self._sample_round(fleet, num_vector_steps, broadcast)
            for part in brought:
                num_vector_steps -= int(part.batch[LOSS_MASK].sum()) // num_envs
            parts += brought
            if brought:
                barren_since = None
            elif barren_since is None:
                barren_since = time.monotonic()
            elif (waited_s := time.monotonic() - barren_since) > fleet.lost_timeout_s:
                raise all_lost(waited_s)
        if self._inference is not None:
            self._inference.look(fleet.tell)
        return parts

    def _sample_round(self, fleet: Fleet, num_vector_steps: int, broadcast: Any) -> list[Samples]:
        """Asks each worker once; returns the samples in the order of the workers' indices."""
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
        """Waits for all answers; a worker that shows no sign of life is given up."""
        timeout_s = self._settings.resources.worker_timeout_s
        alive_at = dict.fromkeys(asked, time.monotonic())
        waiting = list(asked)
        while waiting:
            due_s = min(alive_at[ref] for ref in waiting) + timeout_s - time.monotonic()
            _, waiting = ray.wait(
                waiting, num_returns=len(waiting), timeout=max(due_s, _LEAST_WAIT_S)
            )
            for ref, at in _signs_of_life({ref: asked[ref] for ref in waiting}).items():
                alive_at[ref] = max(alive_at[ref], at)  # its last step may be of the last batch
            now = time.monotonic()
            for ref in [ref for ref in waiting if now - alive_at[ref] > timeout_s]:
                waiting.remove(ref)
                fleet.lose(
                    asked.pop(ref).index,
                    f"none of its environments finished a step or reset in {timeout_s:g} s; raise "
                    f"resources.worker_timeout_s if one may take as long",
                )
        return asked.items()

    def _take(self, fleet: Fleet, worker: Worker, ref: Any) -> Samples | None:
        """A worker's samples, after merging its filters; None if it is lost."""
        try:
            sampled: Samples = ray.get(ref)
        except (RayTaskError, UnserializableException) as error:
            self._raise_if_it_recurs(worker, error)
            fleet.lose(worker.index, reason_of(error))
            return None
        except RayError as error:
            fleet.lose(worker.index, reason_of(error))
            return None
        fleet.has_sampled(worker.index)
        for name, changed in sampled.filters.items():
            self._local.filters[name].apply_changes(changed)
        return sampled

    def _raise_if_it_recurs(self, worker: Worker, error: RayError) -> None:
        """One process may lack memory or disk; if a second one raises, the code is at fault."""
        cause = getattr(error, "cause", None)
        if isinstance(cause, TrainingFailedError):
            raise TrainingFailedError(str(cause)) from error
        if self._has_raised:
            raise TrainingFailedError(
                f"rollout worker {worker.index} failed: {reason_of(error)}; look for its "
                f"traceback in the log, then continue from the last checkpoint with --resume"
            ) from error
        self._has_raised = True


def _signs_of_life(asked: Mapping[Any, Worker]) -> dict[Any, float]:
    """When environments of workers last began a step, in this process's monotonic seconds.

    Args:
        asked: workers by whatever the answer is to be found by. Those that do not answer are left
            out: a process may be busy with one long step, or be gone.
    """
    answers = {worker.actor.seconds_since_step.remote(): key for key, worker in asked.items()}
    if not answers:
        return {}
    done, _ = ray.wait(list(answers), num_returns=len(answers), timeout=_ANSWER_TIMEOUT_S)
    found = {}
    for answer in done:
        with suppress(RayError):
            found[answers[answer]] = time.monotonic() - ray.get(answer)
    return found


def pack(samples: Samples) -> dict[str, Any]:
    """Plain values for a checkpoint."""
    episodes = [(episode.episode_length, episode.episode_reward) for episode in samples.episodes]
    failures = [failure._asdict() for failure in samples.failures]
    return {
        "batch": dict(samples.batch),
        "episodes": episodes,
        "failures": failures,
        "time_s": samples.time_s,
        "num_workers": len(samples.workers),
        "weights_version": samples.weights_version,
    }


def unpack(packed: dict[str, Any]) -> Samples:
    """What `pack` was given."""
    episodes = [RolloutMetrics(length, reward) for length, reward in packed["episodes"]]
    failures = [FailedEpisode(**failure) for failure in packed["failures"]]
    return Samples(
        batch=SampleBatch(packed["batch"]),
        episodes=episodes,
        failures=failures,
        workers=set(range(1, packed["num_workers"] + 1)),
        weights_version=packed["weights_version"],
        time_s=packed["time_s"],
    )


T = TypeVar("T")


class Background(Generic[T]):
    """Starts a call in a daemon thread, which does not delay the exit of the process.

    An exception is raised when the result is asked for.
    """

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._result: T | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        """Waits until the call has returned or raised."""
        self._thread.join()

    def result(self) -> T:
        """What the call returned; raises what it raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # set, since there was no error

    def result_or_none(self) -> T | None:
        """What the call returned; None if it raised."""
        self.wait()
        return self._result


def build_fleet(
    algorithm: Algorithm, resources: ResourceSettings, inference: Inference | None
) -> Fleet | None:
    """The rollout workers of an algorithm, not started yet; None if it samples by itself.

    In a Tune trial, the workers that a run needs to start are in the trial's placement group.
    Further ones are placed outside of it, wherever the cluster has room.
    """
    if resources.num_env_runners == 0:
        return None
    actor_class = ray.remote(
        num_cpus=resources.num_cpus_per_env_runner,
        max_restarts=0,  # a restarted actor would play the same episodes again
        concurrency_groups={HEALTH: 1},
    )(VectorRolloutWorker)
    beyond = actor_class.options(
        scheduling_strategy=PlacementGroupSchedulingStrategy(placement_group=None)
    )
    config, env_creator = ray.put(algorithm.config), ray.put(algorithm.env_creator)
    policy_class = algorithm.get_default_policy_class(algorithm.config)

    def spawn(index: int, *, is_reserved: bool) -> ActorHandle:
        return (actor_class if is_reserved else beyond).remote(
            env_creator=env_creator,
            validate_env=None,
            default_policy_class=policy_class,
            config=config,
            worker_index=index,
            num_workers=resources.num_env_runners,
            log_dir=algorithm.logdir,
            spaces=algorithm.spaces,
            inference=None if inference is None else inference.actor,
        )

    return Fleet(
        spawn,
        size=resources.num_env_runners,
        num_reserved=resources.num_workers_to_begin_with,
        lost_timeout_s=resources.lost_timeout_s,
    )
