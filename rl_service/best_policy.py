"""Keeps the best policy of a run as a bundle."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rl_service.algorithms.base import OnPolicyAlgorithm
from rl_service.errors import BundleError
from rl_service.metrics import json_row
from rl_service.policies.bundle import load_bundle, write_bundle
from rl_service.runs import Run


class BestPolicy:
    """The run's bundle, replaced only by a policy with a higher score."""

    def __init__(self, run: Run, algo: OnPolicyAlgorithm) -> None:
        self._run = run
        self._algo = algo
        self.score = _score_on_disk(run)
        """Mean episode return of the bundle's policy; None without a bundle or a score."""

    @property
    def exists(self) -> bool:
        return self._run.bundle_path.exists()

    def keep_if_better(self, score: float, summary: Mapping[str, Any], source: str) -> None:
        """Writes the policy as it is now if it is the best so far.

        Args:
            score: its mean episode return; a policy whose score is not finite is not kept.
            summary: numbers for the bundle.
            source: `evaluation` or `training`, where the score comes from.
        """
        if not math.isfinite(score):
            return
        if self.score is not None and score <= self.score and self.exists:
            return
        self._write({**json_row(summary), "chosen_by": source})
        self.score = score

    def keep_any(self) -> None:
        """Writes the policy as it is now, without scores, if none was ever kept."""
        if not self.exists:
            self._write({})

    def _write(self, evaluation: dict[str, Any]) -> None:
        policy, settings = self._algo.learner_policy, self._algo.settings
        write_bundle(
            self._run.bundle_path,
            net=policy.net,
            observation_space=policy.observation_space,
            action_space=policy.action_space,
            env=settings.env,
            normalizer=self._algo.observation_normalizer(),
            value_mean=float(policy.value_stats.mean),
            value_std=float(policy.value_stats.std),
            evaluation=evaluation,
            provenance={
                "run_id": self._run.run_id,
                "algorithm": settings.algorithm.name,
                "seed": settings.seed,
                "training_iteration": self._algo.iteration,
                "env_steps": self._algo.env_steps,
            },
        )


def _score_on_disk(run: Run) -> float | None:
    """Score of the bundle there is: it may be newer than the checkpoint of a killed run."""
    try:
        score = load_bundle(run.bundle_path).spec.evaluation.get("episode_return_mean")
    except BundleError:  # absent, or damaged: the next policy replaces it
        return None
    return float(score) if isinstance(score, int | float) else None
