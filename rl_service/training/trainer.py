"""A training without files of its own: iterations, evaluations, a state to continue from."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rl_service.algorithms.build import build_algorithm
from rl_service.common.errors import CheckpointError
from rl_service.common.metrics import ENV_STEPS
from rl_service.config.settings import ResourceSettings, Settings
from rl_service.policies.runner import PolicyRunner
from rl_service.rollout.autoscaler import Autoscaler, Load
from rl_service.rollout.fleet import Fleet
from rl_service.runtime.ray_session import Capacity
from rl_service.training.evaluation import EvaluationResult, evaluate

EVALUATION_SEED_OFFSET = 1_000_000
"""Evaluations during training use other episodes than the final one, which picks nothing."""
RETURN_WINDOW = 100
"""Episodes that the training return is averaged over, as in RLlib."""
_LOW_ENTROPY, _LOW_FOR = 0.01, 5
"""Share of the largest entropy, and the iterations in a row below it that are reported."""
_PROGRESS_FILE = "training_progress.json"


@dataclass
class Progress:
    """What a training remembers beside the algorithm's own state."""

    time_total_s: float = 0.0
    recent_returns: list[float] = field(default_factory=list)
    """Of the last `RETURN_WINDOW` episodes, as `recent_lengths`."""
    recent_lengths: list[int] = field(default_factory=list)

    @property
    def return_mean(self) -> float | None:
        """Training return; None before the first episode has ended."""
        return float(np.mean(self.recent_returns)) if self.recent_returns else None


class Trainer:
    """An algorithm and how far it has come; needs a connected Ray.

    Args:
        settings: checked settings.
        on_message: gets a line when something happens to workers or environments that the user
            should know; also from the thread that samples.
    """

    def __init__(
        self, settings: Settings, on_message: Callable[[str], None] = lambda _: None
    ) -> None:
        self.settings = settings
        self.algo = build_algorithm(settings)
        self._on_message = on_message
        self.algo.learners.on_message = on_message
        if self.algo.fleet is not None:
            self.algo.fleet.on_message = on_message
        self.progress = Progress()
        self._told_of_length = False
        self._low_entropy_for = 0
        self._scaling = self._build_scaling()

    def _build_scaling(self) -> Scaling | None:
        resources, fleet = self.settings.resources, self.algo.fleet
        return Scaling(resources, fleet) if fleet is not None and resources.is_elastic else None

    def close(self) -> None:
        """Ends the rollout workers and further learners."""
        self.algo.stop()

    @property
    def iteration(self) -> int:
        """Iterations done."""
        return int(self.algo.iteration)

    @property
    def is_done(self) -> bool:
        """Whether a stop criterion of the settings is met."""
        return self.settings.stop.is_met(
            iteration=self.iteration,
            env_steps=self.algo.env_steps,
            time_s=self.progress.time_total_s,
            return_mean=self.progress.return_mean,
        )

    def iterate(self) -> dict[str, Any]:
        """Samples and learns once.

        Returns:
            The iteration's numbers, by the keys of `rl_service.common.metrics.METRICS`.

        Raises:
            TrainingFailedError: if training cannot continue.
        """
        self.algo.start_workers()
        started = time.perf_counter()
        steps_before = self.algo.env_steps
        learned: dict[str, float] = self.algo.train()["info"]["learner"]
        elapsed = time.perf_counter() - started
        self.progress.time_total_s += elapsed
        steps = self.algo.env_steps
        row = {
            "training_iteration": self.iteration,
            "num_env_steps_sampled_lifetime": steps,
            **self._episode_metrics(),
            **learned,
            # The steps of the last iteration were sampled while the one before it learnt.
            "env_steps_per_s": (steps - steps_before) / max(elapsed, learned["sample_time_s"]),
            "iteration_time_s": elapsed,
            "time_total_s": self.progress.time_total_s,
            "num_failed_episodes": self.algo.num_failed_episodes,
            **self._worker_metrics(),
        }
        self._tell_failures()
        self._tell_of_collapse(learned.get("entropy", math.inf))
        if self._scaling is not None:
            row |= self._scaling.rescale(row, self.algo.num_sampling_workers)
        return row

    def _tell_failures(self) -> None:
        failures = self.algo.pop_failures()
        if failures:
            self._on_message(
                f"{len(failures)} episode(s) failed in the environment and were dropped; "
                f"the last: {failures[-1]}"
            )

    def _tell_of_collapse(self, entropy: float) -> None:
        """Reports once that a policy has all but stopped trying other actions."""
        spec = self.algo.learner_policy.action_spec
        if not spec.is_categorical or self._low_entropy_for == _LOW_FOR:
            return
        largest = sum(math.log(size) for size in spec.sizes or (spec.size,))
        is_low = entropy < _LOW_ENTROPY * largest
        self._low_entropy_for = self._low_entropy_for + 1 if is_low else 0
        if self._low_entropy_for == _LOW_FOR:
            self._on_message(
                f"the policy's entropy has been below {_LOW_ENTROPY:.0%} of the largest for "
                f"{_LOW_FOR} iterations, so it tries almost no other actions; the best policy so "
                f"far is kept: if its return is too low, start a run with a larger "
                f"algorithm.entropy_coeff or smaller steps (algorithm.actor_lr; TRPO's is max_kl)"
            )

    def _worker_metrics(self) -> dict[str, float]:
        fleet = self.algo.fleet
        if fleet is None:
            return {"num_env_runners": 0}
        return {
            "num_env_runners": len(fleet.ready),
            "num_env_runners_target": fleet.size,
            "num_worker_restarts": fleet.num_restarts,
            "worker_hours": fleet.worker_hours,
        }

    def _episode_metrics(self) -> dict[str, float | None]:
        episodes = self.algo.pop_episodes()
        returns, lengths = self.progress.recent_returns, self.progress.recent_lengths
        returns += [episode.episode_reward for episode in episodes]
        lengths += [episode.episode_length for episode in episodes]
        self._tell_of_length(max((episode.episode_length for episode in episodes), default=0))
        del returns[:-RETURN_WINDOW], lengths[:-RETURN_WINDOW]
        return {
            "num_episodes": len(episodes),
            "episode_return_mean": self.progress.return_mean,
            "episode_return_min": min(returns) if returns else None,
            "episode_return_max": max(returns) if returns else None,
            "episode_len_mean": float(np.mean(lengths)) if lengths else None,
        }

    def _tell_of_length(self, longest: int) -> None:
        """Reports once that the critic cannot distinguish the last steps of an episode."""
        critic = self.settings.model.gpt2_settings
        if critic is None or not 1 < critic.num_timesteps < longest or self._told_of_length:
            return
        self._told_of_length = True
        self._on_message(
            f"an episode lasted {longest:,} env steps, but the critic cannot distinguish "
            f"steps from max_timesteps={critic.num_timesteps:,} on; start a run with "
            f"max_timesteps={longest}, or with time=relative"
        )

    @property
    def evaluation_is_due(self) -> bool:
        """Whether the policy is to be evaluated now: every n iterations and after the last."""
        interval = self.settings.evaluation.interval
        return interval > 0 and (self.iteration % interval == 0 or self.is_done)

    def evaluate(self) -> EvaluationResult:
        """Plays the policy as it is now, outside RLlib."""
        policy = self.algo.learner_policy
        policy.net.actor.open_cache()  # nothing learns until the end of the evaluation
        runner = PolicyRunner(
            policy.net.actor,
            policy.observation_space.shape,
            policy.action_spec,
            self.algo.observation_normalizer(),
        )
        return evaluate(
            runner,
            self.settings.env,
            num_episodes=self.settings.evaluation.num_episodes,
            seed=self.settings.seed + EVALUATION_SEED_OFFSET,
            max_episode_steps=self.settings.evaluation.max_episode_steps,
            on_message=self._on_message,
        )

    def save(self, folder: Path) -> None:
        """Writes the whole state into an existing folder."""
        self.algo.save_checkpoint(str(folder))
        text = json.dumps(asdict(self.progress))
        (folder / _PROGRESS_FILE).write_text(text, encoding="utf-8")

    def restore(self, folder: Path) -> None:
        """Continues from a saved state; the current settings apply from here on.

        Raises:
            CheckpointError: if the state is missing, damaged or of another kind of run.
        """
        self.algo.load_checkpoint(str(folder))
        self._scaling = self._build_scaling()  # from the number of workers that it had
        try:
            saved = json.loads((folder / _PROGRESS_FILE).read_text(encoding="utf-8"))
            self.progress = Progress(**saved)
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"{folder / _PROGRESS_FILE} is missing or damaged; remove that checkpoint "
                f"to resume from an earlier one"
            ) from error


def evaluation_row(result: EvaluationResult) -> dict[str, float]:
    """An evaluation by the keys of `rl_service.common.metrics.METRICS`."""
    return {
        "evaluation/episode_return_mean": result.mean,
        "evaluation/episode_return_std": result.std,
        "evaluation/episode_len_mean": float(result.lengths.mean()),
        "evaluation/num_unfinished_episodes": len(result.unfinished),
    }


class Scaling:
    """A fleet whose size follows what iterations measure.

    Args:
        resources: limits and delays.
        fleet: to be resized.
    """

    def __init__(self, resources: ResourceSettings, fleet: Fleet) -> None:
        self._fleet = fleet
        self._autoscaler = Autoscaler(resources, fleet.size)
        self._capacity = Capacity(resources.num_cpus_per_env_runner, fleet.count_held)

    def rescale(self, row: Mapping[str, Any], num_sampling_workers: int) -> dict[str, Any]:
        """Resizes the fleet if the autoscaler wants it; never waits for a worker.

        Args:
            row: numbers of the iteration, by the keys of `rl_service.common.metrics.METRICS`.
            num_sampling_workers: workers that sampled the iteration's batch.

        Returns:
            The decision, by the same keys.
        """
        fleet = self._fleet
        decision = self._autoscaler.decide(
            Load(
                iteration=row["training_iteration"],
                env_steps=row[ENV_STEPS],
                num_workers=num_sampling_workers,
                num_alive=len(fleet.ready),
                num_starting=fleet.num_starting,
                sample_time_s=row["sample_time_s"],
                learn_time_s=row["learn_time_s"],
                learn_actor_time_s=row["learn_actor_time_s"],
                iteration_time_s=row["iteration_time_s"],
                max_placeable=self._capacity.placeable(),
                worker_hours=fleet.worker_hours,
            )
        )
        if decision.num_workers != fleet.size:
            fleet.tell(f"rollout workers: {decision.reason}")
            fleet.resize(decision.num_workers)
        return {"num_env_runners_target": fleet.size, "scaling_reason": decision.reason}
