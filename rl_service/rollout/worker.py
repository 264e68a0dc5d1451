"""The rollout worker: RLlib's `RolloutWorker` with a vectorised sampler inside.

RLlib's own sampler costs about a millisecond of Python per env step. This subclass keeps
everything around it (actors, weight sync, filters, metrics, restarts) and steps the same
sub-environments through `VectorSampler`.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import numpy as np
import ray
import torch
from ray.rllib.env.env_context import EnvContext
from ray.rllib.evaluation.metrics import RolloutMetrics
from ray.rllib.evaluation.rollout_worker import RolloutWorker
from ray.rllib.policy.sample_batch import DEFAULT_POLICY_ID, SampleBatch

from custom_models.rllib_models import acting_context_length, num_context_steps
from custom_models.spaces import ActionSpec
from rl_service.config.settings import EnvSettings
from rl_service.envs import make_env
from rl_service.envs.episodes import SeededEpisodes
from rl_service.envs.failures import FailedEpisode
from rl_service.normalization import RunningMeanStd
from rl_service.process import prepare_process, spare_the_collector
from rl_service.rollout.filters import OBSERVATIONS, RETURNS, ReturnScaler, RunningFilter
from rl_service.rollout.sampler import VectorSampler

logger = logging.getLogger(__name__)


def create_env(context: EnvContext) -> SeededEpisodes:
    """RLlib's env creator; `context` holds the env settings and the run's seed."""
    make = partial(make_env, EnvSettings(**context["settings"]))
    return SeededEpisodes(make, context["seed"], context.worker_index, context.vector_index)


class VectorRolloutWorker(RolloutWorker):  # type: ignore[misc]
    """Samples fragments with their context, as the model's view requirements ask."""

    def __init__(self, **kwargs: Any) -> None:
        config = kwargs["config"]
        resources = config.settings.resources
        is_learner = kwargs.get("worker_index", 0) == 0
        prepare_process(resources.learner_threads if is_learner else resources.worker_threads)
        super().__init__(**kwargs)
        self._vector_sampler: VectorSampler | None = None
        if self.async_env is not None:
            self._vector_sampler = self._build_sampler()
            if self.worker_index and ray.get_runtime_context().was_current_actor_reconstructed:
                self._start_new_streams()
        spare_the_collector()

    def _start_new_streams(self) -> None:
        """A worker that replaces a dead one would else play the same episodes once more."""
        seed = int(np.random.SeedSequence().generate_state(1)[0])
        torch.manual_seed(seed)
        for env in self.async_env.get_sub_environments():
            env.start_stream(seed)

    def _build_sampler(self) -> VectorSampler:
        policy = self.policy_map[DEFAULT_POLICY_ID]
        envs = self.async_env.get_sub_environments()
        returns = self.filters.get(RETURNS)
        return VectorSampler(
            envs,
            policy.act,
            ActionSpec.from_space(policy.action_space),
            num_context_steps=num_context_steps(policy.view_requirements),
            acting_context_length=acting_context_length(policy.view_requirements),
            obs_filter=self.filters.get(OBSERVATIONS),
            return_scaler=returns
            and ReturnScaler(returns, len(envs), self.config.settings.algorithm.gamma),
            worker_index=self.worker_index,
            max_failures=self.config.settings.env.max_failed_episodes,
        )

    def _update_filter_dict(self, policy_dict: dict[str, Any]) -> None:
        """Installs our filters where RLlib installs its own."""
        settings = self.config.settings.env
        self.filters = {}
        if settings.observation_filter == "MeanStdFilter":
            spec = policy_dict[DEFAULT_POLICY_ID]
            size = int(np.prod(spec.observation_space.shape))
            self.filters[OBSERVATIONS] = RunningFilter((size,))
        if settings.normalize_returns:
            self.filters[RETURNS] = RunningFilter(())

    def sample(self, num_vector_steps: int | None = None, **kwargs: Any) -> SampleBatch:
        """Takes vector steps with the current weights.

        Args:
            num_vector_steps: T, by default the configured fragment length.
            **kwargs: accepted for RLlib's signature.

        Returns:
            Rows of one fragment per env.
        """
        assert self._vector_sampler is not None, "a worker without an env cannot sample"
        steps = num_vector_steps or self.config.get_rollout_fragment_length(self.worker_index)
        batch = SampleBatch(self._vector_sampler.sample(steps))
        self.callbacks.on_sample_end(worker=self, samples=batch)
        return batch

    def get_metrics(self) -> list[RolloutMetrics]:
        """Episodes that have ended since the last call."""
        if self._vector_sampler is None:
            return []
        return [
            RolloutMetrics(episode.length, episode.episode_return)
            for episode in self._vector_sampler.pop_episodes()
        ]

    def get_failures(self) -> list[FailedEpisode]:
        """Episodes that failed in their environment since the last call."""
        return [] if self._vector_sampler is None else self._vector_sampler.pop_failures()

    def get_rollout_state(self) -> dict[str, Any]:
        """Where this worker stands: envs, context, random state; for an exact resume."""
        sampler = self._vector_sampler
        return {
            "sampler": None if sampler is None else sampler.state(),
            "torch_rng": torch.get_rng_state().numpy(),
        }

    def restore_rollout(
        self,
        weights: dict[str, Any],
        filters: dict[str, dict[str, Any]],
        state: dict[str, Any] | None,
    ) -> None:
        """Goes on where a checkpoint was taken.

        Args:
            weights: of the actor.
            filters: statistics of each filter, by its name.
            state: of `get_rollout_state`; None for a worker that the checkpoint did not have.
        """
        self.policy_map[DEFAULT_POLICY_ID].set_weights(weights)
        for name, stats in filters.items():
            self.filters[name].stats = RunningMeanStd.from_state(stats)
            self.filters[name].reset_buffer()
        if state is None:
            return
        if self._vector_sampler is not None and state["sampler"] is not None:
            self._restore_episodes(self._vector_sampler, state["sampler"])
        torch.set_rng_state(torch.from_numpy(state["torch_rng"].copy()))

    def _restore_episodes(self, sampler: VectorSampler, state: dict[str, Any]) -> None:
        if len(state["envs"]) != len(sampler.envs):
            logger.warning("another number of envs than before: all start a new episode")
            return
        lost = sampler.restore(state)
        if lost:
            logger.warning(
                "envs %s of worker %d are not deterministic: they start a new episode",
                lost,
                self.worker_index,
            )
