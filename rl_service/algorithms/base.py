"""The RLlib `Algorithm` that PPO, A2C and TRPO share: sampling, faults, checkpoints."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.evaluation.metrics import RolloutMetrics
from ray.rllib.policy.policy import Policy
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED, NUM_ENV_STEPS_TRAINED

from rl_service.algorithms.batch import build_learner_batch
from rl_service.algorithms.build import OnPolicyConfig
from rl_service.algorithms.learner import update_nets
from rl_service.algorithms.learners import Learners
from rl_service.algorithms.policy import ActorCriticPolicy
from rl_service.algorithms.sampling import (
    Background,
    BatchSampler,
    build_fleet,
    pack,
    unpack,
)
from rl_service.algorithms.state import base_model_sha256, read_state, write_state
from rl_service.common.errors import CheckpointError, TrainingFailedError
from rl_service.config.settings import Settings
from rl_service.rollout.env_failures import FailedEpisode, too_many_failures
from rl_service.rollout.filters import OBSERVATIONS, ObservationNormalizer
from rl_service.rollout.fleet import Fleet, FleetState
from rl_service.rollout.fragments import LOSS_MASK
from rl_service.rollout.inference import Inference
from rl_service.rollout.worker import Samples, VectorRolloutWorker

# Counters: updates of the actor so far, episodes that failed in their environment.
_UPDATES, _FAILED = "actor_updates", "failed_episodes"


class OnPolicyAlgorithm(Algorithm):  # type: ignore[misc]
    """Samples a batch of fixed size, learns, and sends out weights."""

    policy_class: ClassVar[type[ActorCriticPolicy]]

    @classmethod
    def get_default_config(cls) -> OnPolicyConfig:
        return OnPolicyConfig(algo_class=cls)

    @classmethod
    def get_default_policy_class(cls, config: Any) -> type[Policy]:
        return cls.policy_class

    def _setup_logdir(self) -> None:
        """Outside Tune, no folder under the user's home: the run has its own."""
        if self._storage:
            super()._setup_logdir()

    def setup(self, config: OnPolicyConfig) -> None:
        self._new_episodes: list[RolloutMetrics] = []
        self._new_failures: list[FailedEpisode] = []
        self._next_samples: Background[Samples] | None = None
        self._inference: Inference | None = None
        self.fleet: Fleet | None = None
        self.num_sampling_workers = 0
        """Rollout workers that sampled the newest batch."""
        super().setup(config)
        self.learners = Learners(self.learner_policy)
        if config.has_inference_actor:
            net = self.learner_policy.net
            self._inference = Inference(self.settings, net.observation_size, net.action_spec)
        self.fleet = build_fleet(self, self.settings.resources, self._inference)
        self._sampler = BatchSampler(self.env_runner, self.fleet, self._inference, self.settings)

    @property
    def settings(self) -> Settings:
        settings: Settings = self.config.settings
        return settings

    @property
    def learner_policy(self) -> ActorCriticPolicy:
        policy: ActorCriticPolicy = self.get_policy()
        return policy

    def observation_normalizer(self) -> ObservationNormalizer | None:
        """The observation filter's statistics as they stand, None without a filter."""
        observations = self.env_runner.filters.get(OBSERVATIONS)
        return None if observations is None else observations.normalizer()

    @property
    def env_steps(self) -> int:
        """Env steps sampled since the run began."""
        return int(self._counters[NUM_ENV_STEPS_SAMPLED])

    def start_workers(self) -> None:
        """Starts learners and rollout workers unless they run, and waits for those that are needed.

        Raises:
            TrainingFailedError: if they do not start.
        """
        self.learners.start()  # first: in a Tune trial, workers could take their places
        if self._inference is not None:
            self._inference.start()
        if self.fleet is not None:
            self.fleet.start(self.settings.resources.num_workers_to_begin_with)

    def cleanup(self) -> None:
        """Ends the rollout workers and further learners as well."""
        self.learners.stop()
        if self.fleet is not None:
            self.fleet.stop()
        if self._inference is not None:
            self._inference.stop()
        if self._next_samples is not None:
            self._next_samples.wait()  # it ends, since all that it waits for is gone
        super().cleanup()

    def training_step(self) -> dict[str, Any]:
        """One iteration: as many updates as fit into `train_batch_size` env steps."""
        self.start_workers()
        settings = self.settings
        count = settings.algorithm.train_batch_size // settings.env_steps_per_update
        return _summary([self._update() for _ in range(count)])

    def _update(self) -> dict[str, float]:
        """Takes a batch, improves the actor, fits the critic.

        The critic is fitted beside the actor if two threads can do that. Sampling needs the actor
        alone, so rollout workers sample the next batch with the new actor while the critic is
        being fitted here. Nothing is ever sampled with old weights.
        """
        pending, self._next_samples = self._next_samples, None
        sampled = self._sample() if pending is None else pending.result()
        self._new_episodes += sampled.episodes
        self._count_failures(sampled.failures)
        num_steps = int(sampled.batch[LOSS_MASK].sum())
        self._counters[NUM_ENV_STEPS_SAMPLED] += num_steps
        started, policy = time.perf_counter(), self.learner_policy
        batch = build_learner_batch(policy, sampled.batch)

        def on_actor(stats: dict[str, float]) -> None:
            stats["weights_lag"] = self._num_updates - sampled.weights_version
            self._counters[_UPDATES] += 1
            stats["learn_actor_time_s"] = time.perf_counter() - started
            _check_finite(stats)
            self._counters[NUM_ENV_STEPS_TRAINED] += num_steps
            if self.fleet is not None and not self._is_last_batch():
                self._next_samples = Background(self._sample)

        with self.learners.learning(batch):
            stats = update_nets(policy, batch, on_actor)
            _check_finite(stats)
        policy.global_timestep = self.env_steps
        stats["learn_time_s"] = time.perf_counter() - started
        if self._next_samples is not None:
            self._next_samples.wait()  # nothing moves between two iterations
        self.num_sampling_workers = len(sampled.workers)
        return stats | {"sample_time_s": sampled.time_s}

    @property
    def _num_updates(self) -> int:
        return int(self._counters[_UPDATES])

    def _sample(self) -> Samples:
        return self._sampler.sample(self._num_updates)

    def _count_failures(self, failures: list[FailedEpisode]) -> None:
        self._counters[_FAILED] += len(failures)
        self._new_failures += failures
        limit = self.settings.env.max_failed_episodes
        if failures and self.num_failed_episodes > limit:
            raise TrainingFailedError(
                too_many_failures(self.num_failed_episodes, limit, failures[-1])
            )

    def _is_last_batch(self) -> bool:
        total = self.settings.total_env_steps
        return total is not None and self.env_steps >= total

    def pop_episodes(self) -> list[RolloutMetrics]:
        """Episodes that ended since the last call, of all workers."""
        episodes, self._new_episodes = self._new_episodes, []
        return episodes

    @property
    def num_failed_episodes(self) -> int:
        """Episodes that failed in their environment since the run began."""
        return int(self._counters[_FAILED])

    def pop_failures(self) -> list[FailedEpisode]:
        """Those since the last call."""
        failures, self._new_failures = self._new_failures, []
        return failures

    def _remote_worker_ids_for_metrics(self) -> list[int]:
        """None: episodes arrive with the samples, so no further round trip is needed."""
        return []

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Writes the whole training state: one file of tensors and plain values, no pickled code.

        The rollout workers' envs, context and random states are part of it.
        """
        local: VectorRolloutWorker = self.env_runner
        state = {
            "model": self.settings.model.name,
            "base_model": base_model_sha256(self.settings.model),
            "whole_prompts": True,
            "algorithm": self.settings.algorithm.name,
            "env": self.settings.env.id,
            "observation_filter": self.settings.env.observation_filter,
            "normalize_returns": self.settings.env.normalize_returns,
            "iteration": self.iteration,
            "counters": dict(self._counters),
            "learner": self.learner_policy.get_learner_state(),
            "filters": {name: f.stats.state() for name, f in local.filters.items()},
            "fleet": None if self.fleet is None else asdict(self.fleet.state()),
            "learners": self.learners.random_states,
            "local_worker": local.get_rollout_state(),
            "next_samples": self._packed_next_samples(),
            "numpy_rng": np.random.get_state(legacy=False),
        }
        write_state(Path(checkpoint_dir), state)

    def _packed_next_samples(self) -> dict[str, Any] | None:
        """None also if sampling them has failed: a resumed run starts with the state before it."""
        samples = None if self._next_samples is None else self._next_samples.result_or_none()
        return None if samples is None else pack(samples)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Restores a state into a freshly built algorithm of the same settings.

        Rollout workers beyond those of the checkpoint start fresh episodes.

        Raises:
            CheckpointError: if the file is missing, damaged or of another kind of run.
        """
        state = read_state(Path(checkpoint_dir), self.settings)
        if "whole_prompts" not in state and not self.learner_policy.net.actor.reads_as_before:
            raise CheckpointError(
                f"{checkpoint_dir} is of an earlier release, which tokenised prompts in pieces: "
                f"with this tokenizer they were others; start a new run"
            )
        try:
            self.learner_policy.set_learner_state(state["learner"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"{checkpoint_dir} does not fit this model ({str(error).splitlines()[0]}); "
                f"resume with the settings that the run was started with"
            ) from error
        self._iteration = state["iteration"]
        self._counters.update(state["counters"])
        np.random.set_state(state["numpy_rng"])
        packed = state["next_samples"]
        self._next_samples = None if packed is None else Background(lambda: unpack(packed))
        local: VectorRolloutWorker = self.env_runner
        local.restore_filters(state["filters"])
        local.restore_rollout(state["local_worker"])
        self.learners.restore(state.get("learners", []))  # an earlier release had one learner
        if self._inference is not None:
            self._inference.stop()  # it may have other weights of the same number of updates
        if self.fleet is not None and state["fleet"] is not None:
            saved = FleetState(**state["fleet"])
            self.fleet.restore(saved, self.settings.resources.num_workers_after(saved.size))


def _summary(rows: list[dict[str, float]]) -> dict[str, float]:
    """Sums the times of several updates, keeps the last learning rates, averages the rest."""
    if len(rows) == 1:
        return rows[0]
    return {name: _summarised(name, [row[name] for row in rows]) for name in rows[0]}


def _summarised(name: str, values: list[float]) -> float:
    if name.endswith("_s"):
        return sum(values)
    return values[-1] if name.endswith("_lr") else sum(values) / len(values)


def _check_finite(stats: dict[str, float]) -> None:
    broken = [name for name, value in stats.items() if not math.isfinite(value)]
    if broken:
        raise TrainingFailedError(
            f"{', '.join(broken)} became NaN or infinite; lower the learning rates or set "
            f"algorithm.grad_clip, then continue from the last checkpoint with --resume"
        )
