"""Every key of `progress.jsonl` with its unit and meaning; the words that the trackers show.

"Iteration" is one round of sampling and learning. Figures over episodes are over the last 100
that ended (RLlib's window), and null before the first.
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Metric:
    """Unit and meaning of one number."""

    unit: str
    meaning: str


TEXT = "text"
"""Unit of the metrics that are words; curves and means leave them out."""

ENV_STEPS = "num_env_steps_sampled_lifetime"
"""What progress is measured in, and curves are drawn over."""

METRICS: dict[str, Metric] = {
    "training_iteration": Metric("iterations", "iterations done, this one included"),
    ENV_STEPS: Metric("env steps", "steps sampled since the run began"),
    "num_episodes": Metric("episodes", "episodes that ended in the iteration"),
    "episode_return_mean": Metric("reward", "mean undiscounted return, stochastic policy"),
    "episode_return_min": Metric("reward", "lowest return"),
    "episode_return_max": Metric("reward", "highest return"),
    "episode_len_mean": Metric("env steps", "mean length of an episode"),
    "policy_loss": Metric("1", "mean loss of the actor without its entropy and KL terms"),
    "vf_loss": Metric("value²", "mean squared error of the critic, in normalised value units"),
    "entropy": Metric("nats", "mean entropy of the action distribution"),
    "mean_kl_loss": Metric("nats", "mean KL divergence of the new policy from the sampling one"),
    "clip_fraction": Metric("share 0-1", "share of steps whose probability ratio was clipped"),
    "vf_explained_var": Metric("1", "share of the value targets' variance that values explain"),
    "grad_norm_actor": Metric("1", "mean gradient norm of the actor before clipping"),
    "grad_norm_critic": Metric("1", "mean gradient norm of the critic before clipping"),
    "num_epochs_done": Metric("passes", "actor passes over the batch; fewer after a KL stop"),
    "actor_lr": Metric("1", "learning rate of the actor in the iteration"),
    "critic_lr": Metric("1", "learning rate of the critic in the iteration"),
    "surrogate_before": Metric("1", "TRPO's surrogate before the update"),
    "surrogate_after": Metric("1", "and after it"),
    "line_search_steps": Metric("steps", "step lengths that TRPO's line search tried"),
    "step_accepted": Metric("0 or 1", "whether it took one; if not, the policy was kept"),
    "cg_residual": Metric("1", "what conjugate gradient left over, relative to the gradient"),
    "kl_coeff": Metric("1", "weight of the KL penalty in the iteration"),
    "env_steps_per_s": Metric(
        "env steps/s",
        "steps of the iteration by its duration, or by sample_time_s if that is longer: those of "
        "the last iteration were sampled before it",
    ),
    "sample_time_s": Metric(
        "s", "time that sampling the batch took; workers sample while the critic learns"
    ),
    "learn_time_s": Metric("s", "time that learning from the batch took"),
    "learn_actor_time_s": Metric(
        "s", "share of it until the actor was updated, in which rollout workers wait"
    ),
    "iteration_time_s": Metric("s", "duration of the iteration without evaluation"),
    "time_total_s": Metric(
        "s", "sum of iteration_time_s; evaluations, checkpoints, starting and pauses are left out"
    ),
    "weights_lag": Metric(
        "updates", "age of the oldest weights that sampled a part of the batch; 0 is on-policy"
    ),
    "num_env_runners": Metric("workers", "rollout workers that are ready to sample"),
    "num_env_runners_target": Metric("workers", "rollout workers that are wanted"),
    "num_worker_restarts": Metric("workers", "rollout workers replaced since the run began"),
    "scaling_reason": Metric(TEXT, "why the autoscaler wants as many"),
    "num_failed_episodes": Metric(
        "episodes", "episodes dropped since the run began because their environment failed"
    ),
    "worker_hours": Metric("h", "time that rollout workers have been ready, summed over them"),
    "evaluation/episode_return_mean": Metric("reward", "mean return, deterministic policy"),
    "evaluation/episode_return_std": Metric("reward", "standard deviation of these returns"),
    "evaluation/episode_len_mean": Metric("env steps", "mean length of these episodes"),
    "evaluation/num_unfinished_episodes": Metric(
        "episodes", "those of them that were cut off at evaluation.max_episode_steps"
    ),
}

NUMERIC = frozenset(key for key, metric in METRICS.items() if metric.unit != TEXT)
"""Keys of the metrics that have a curve."""


def check_row(row: Mapping[str, Any]) -> None:
    """Keeps the list of keys complete.

    Raises:
        ValueError: naming a key that is not listed, and the nearest that is.
    """
    for key in row:
        if key not in METRICS:
            nearest = difflib.get_close_matches(key, METRICS, n=1)
            hint = f"did you mean '{nearest[0]}'? Else " if nearest else ""
            raise ValueError(
                f"unknown metric '{key}'; {hint}list it in rl_service.common.metrics.METRICS"
            )


def json_row(row: Mapping[str, Any]) -> dict[str, int | float | str | None]:
    """The row in plain values: NumPy scalars become Python's, NaN and infinity become None."""
    return {key: _plain_value(value) for key, value in row.items()}


def numbers_of(row: Mapping[str, Any]) -> dict[str, int | float]:
    """The row's finite numbers, plain."""
    return {k: v for k, v in json_row(row).items() if v is not None and not isinstance(v, str)}


def _plain_value(value: Any) -> int | float | str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else None
