"""The rollout worker: RLlib's `RolloutWorker` with a vectorised sampler inside.

RLlib's own sampler costs about a millisecond of Python per env step. This subclass keeps
everything around it (policy, filters, metrics) and steps the same sub-environments through
`VectorSampler`. One lives in the learner's process, the others are actors of a `Fleet`.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import ray
import torch
from ray.actor import ActorHandle
from ray.rllib.env.env_context import EnvContext
from ray.rllib.evaluation.metrics import RolloutMetrics
from ray.rllib.evaluation.rollout_worker import RolloutWorker
from ray.rllib.policy.sample_batch import DEFAULT_POLICY_ID, SampleBatch

from custom_models.draws import Draws
from custom_models.history import History
from custom_models.rllib_models import acting_context_length, num_context_steps
from custom_models.spaces import FloatArray
from custom_models.text import one_line
from rl_service.common.errors import TrainingFailedError
from rl_service.config.settings import EnvSettings, Settings
from rl_service.rollout.env_failures import FailedEpisode
from rl_service.rollout.envs import make_env
from rl_service.rollout.episodes import SeededEpisodes
from rl_service.rollout.filters import (
    OBSERVATIONS,
    RETURNS,
    ReturnScaler,
    RunningFilter,
    RunningMeanStd,
)
from rl_service.rollout.pool import PoolStepping
from rl_service.rollout.sampler import Acted, Decide, Policy, VectorSampler
from rl_service.rollout.stepping import Array, GymStepping, Stepping
from rl_service.runtime.process import prepare_process, seed_process, spare_the_collector

if TYPE_CHECKING:
    from custom_models.prompt_actor import PromptActor  # transformers takes seconds to import

logger = logging.getLogger(__name__)

HEALTH = "health"
"""Concurrency group of the methods that answer while the worker samples."""


class Broadcast(NamedTuple):
    """What every worker receives before it samples."""

    weights: Any
    """Of the actor, by name; a reference to them for workers that ask an `InferenceActor`."""
    filters: dict[str, RunningFilter]
    """Merged over all workers, by name."""
    weights_version: int
    """Number of updates of the actor so far."""


class Samples(NamedTuple):
    """What one request to sample returns, or all requests for a batch together."""

    batch: SampleBatch
    """Rows of fragments."""
    episodes: list[RolloutMetrics]
    """Those that ended."""
    failures: list[FailedEpisode]
    workers: set[int]
    """Indices of the rollout workers that sampled; none if the learner's own process did."""
    weights_version: int
    """Updates of the actor before the oldest weights that sampled a part of the batch."""
    time_s: float = 0.0
    """That the batch took."""
    filters: dict[str, RunningFilter] = {}  # noqa: RUF012, never written
    """A worker's statistics; their buffers hold what it has seen since its last request."""


def create_env(context: EnvContext) -> SeededEpisodes:
    """RLlib's env creator; `context` holds the env settings and the run's seed."""
    make = partial(make_env, EnvSettings(**context["settings"]))
    return SeededEpisodes(make, context["seed"], context.worker_index, context.vector_index)


class VectorRolloutWorker(RolloutWorker):  # type: ignore[misc]
    """Samples fragments with the context that the model's view requirements ask for.

    Args:
        inference: an `InferenceActor` that has the policy's net; None: the worker has it.
        **kwargs: of RLlib's worker.
    """

    def __init__(self, inference: ActorHandle | None = None, **kwargs: Any) -> None:
        resources = kwargs["config"].settings.resources
        is_learner = kwargs.get("worker_index", 0) == 0
        if is_learner:  # otherwise RLlib gives it an env of its own
            kwargs["num_workers"] = resources.num_env_runners
        prepare_process(resources.learner_threads if is_learner else resources.worker_threads)
        seed_process(kwargs["config"].settings.seed + kwargs.get("worker_index", 0))
        super().__init__(**kwargs)
        self.weights_version = 0
        """Number of updates of the actor so far."""
        self._inference = inference
        self._weights: Any = None
        """A reference to the actor's weights, for `inference`."""
        self._alive_at = time.monotonic()
        self._vector_sampler = None if self.async_env is None else self._build_sampler()
        spare_the_collector()

    def _build_sampler(self) -> VectorSampler:
        policy = self.policy_map[DEFAULT_POLICY_ID]
        stepping = self._build_stepping()
        returns, scaler = self.filters.get(RETURNS), None
        if returns is not None:
            gamma = self.config.settings.algorithm.gamma
            scaler = ReturnScaler(returns, stepping.num_envs, gamma)
        return VectorSampler(
            stepping,
            self._open_policy,
            num_context_steps=num_context_steps(policy.view_requirements),
            acting_context_length=acting_context_length(policy.view_requirements),
            obs_filter=self.filters.get(OBSERVATIONS),
            return_scaler=scaler,
            worker_index=self.worker_index,
        )

    def _build_stepping(self) -> Stepping:
        settings: Settings = self.config.settings
        envs = self.async_env.get_sub_environments()
        if settings.env.backend == "gymnasium":
            return GymStepping(envs, settings.env.max_failed_episodes)
        spaces = envs[0].observation_space, envs[0].action_space
        streams = [
            (settings.seed, self.worker_index, e)
            for e in range(settings.resources.num_envs_per_env_runner)
        ]
        return PoolStepping(settings.env, *spaces, streams)

    def _open_policy(self, num_actions: int) -> Policy:
        """The policy with its current weights, none of whose earlier results it may reuse."""
        policy = self.policy_map[DEFAULT_POLICY_ID]
        decide: Decide = policy.open() if self._inference is None else self._ask
        draws = Draws(policy.action_spec, num_actions)

        def act(history: History, masks: npt.NDArray[np.bool_] | None) -> Acted:
            self._alive_at = time.monotonic()
            try:
                acted: Acted = policy.act(history, draws, decide, masks)
            except ValueError as error:  # such as a prompt that is too long
                raise TrainingFailedError(f"the policy cannot act: {one_line(error)}") from error
            return acted

        return act

    def _ask(self, history: History) -> tuple[FloatArray, Array | None]:
        """As `Decide`, by the process that has the language model."""
        assert self._inference is not None
        actor: PromptActor = self.policy_map[DEFAULT_POLICY_ID].net.actor
        tokens = actor.write(history)
        # In a list, since a reference by itself would arrive as what it refers to.
        asked = self._inference.decide.remote(tokens, self.weights_version, [self._weights])
        dist_inputs, hidden = ray.get(asked)
        return dist_inputs, hidden if actor.is_frozen else tokens

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

    def join(self, state: dict[str, Any] | None) -> str:
        """The first call of an actor; returns the id of its Ray node.

        Args:
            state: from a checkpoint, to continue from; None for a new worker.
        """
        if state is not None:
            self.restore_rollout(state)
        return str(ray.get_runtime_context().get_node_id())

    @ray.method(concurrency_group=HEALTH)  # type: ignore[untyped-decorator]
    def seconds_since_step(self) -> float:
        """Seconds since the policy was last asked, or an env began a step or a reset.

        It answers while the worker samples.
        """
        sampler = self._vector_sampler
        stepped_at = 0.0 if sampler is None else sampler.stepping.alive_at
        return time.monotonic() - max(self._alive_at, stepped_at)

    def request(self, num_vector_steps: int, broadcast: Broadcast) -> Samples:
        """One round trip: receives weights and filters, samples, and returns the samples."""
        self._alive_at = time.monotonic()
        if self._inference is None:
            self.policy_map[DEFAULT_POLICY_ID].set_weights(broadcast.weights)
        else:
            self._weights = broadcast.weights
        self.sync_filters(broadcast.filters)
        self.weights_version = broadcast.weights_version
        return self.sample_and_report(num_vector_steps)

    def sample_and_report(self, num_vector_steps: int) -> Samples:
        """Samples with the current weights; returns the samples and what the filters have seen."""
        batch = self.sample(num_vector_steps)
        filters = self.get_filters(flush_after=True)
        return Samples(
            batch,
            self.get_metrics(),
            self.get_failures(),
            {self.worker_index} - {0},
            self.weights_version,
            filters=filters,
        )

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
        """The worker's envs, context and random state, for an exact resume."""
        sampler = self._vector_sampler
        return {
            "sampler": None if sampler is None else sampler.state(),
            "torch_rng": torch.get_rng_state().numpy(),
        }

    def restore_rollout(self, state: dict[str, Any]) -> None:
        """Continues where `get_rollout_state` was called.

        Args:
            state: what it returned.
        """
        if self._vector_sampler is not None and state["sampler"] is not None:
            self._restore_episodes(self._vector_sampler, state["sampler"])
        torch.set_rng_state(torch.from_numpy(state["torch_rng"].copy()))

    def restore_filters(self, filters: dict[str, dict[str, Any]]) -> None:
        """Takes over statistics, by the filter's name, as `RunningMeanStd.state` gives them."""
        for name, stats in filters.items():
            self.filters[name].stats = RunningMeanStd.from_state(stats)
            self.filters[name].reset_buffer()

    def _restore_episodes(self, sampler: VectorSampler, state: dict[str, Any]) -> None:
        if len(state["envs"]) != sampler.stepping.num_envs:
            logger.warning("another number of envs than before: all start a new episode")
            sampler.stepping.skip_episodes(max(env["episode"] for env in state["envs"]))
            return
        lost = sampler.restore(state)
        if lost:
            logger.warning(
                "envs %s of worker %d cannot be brought back: they start a new episode",
                lost,
                self.worker_index,
            )
