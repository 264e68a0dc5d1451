"""Keeps the best policy of a training as a bundle."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_service.algorithms.base import OnPolicyAlgorithm
from rl_service.common.errors import BundleError, RLServiceError
from rl_service.common.files import replacing_folder
from rl_service.common.metrics import json_row
from rl_service.config.settings import TrackingSettings
from rl_service.policies.bundle import load_bundle, write_bundle
from rl_service.policies.policy_versions import PolicyVersion
from rl_service.policies.registry import REGISTRY_FOLDER, REGISTRY_VARIABLE, PolicyRegistry
from rl_service.training.evaluation import EvaluationResult
from rl_service.training.tracking import Notify


class BestPolicy:
    """A training's bundle, replaced by a later policy whose score is as high or higher.

    If a return has an upper bound, the first policy to reach it may only have been lucky.
    """

    def __init__(self, path: Path, run_id: str, algo: OnPolicyAlgorithm) -> None:
        self.path = path
        self._run_id = run_id
        self._algo = algo
        self.score = self._score_on_disk()
        """Mean episode return of the bundle's policy; None without a bundle or a score."""

    @property
    def exists(self) -> bool:
        return self.path.exists()

    def keep_if_better(self, result: EvaluationResult) -> bool:
        """Writes the policy as it is now if no earlier evaluation was better.

        Returns:
            Whether it was; a policy whose mean return is not finite never is.
        """
        summary = {
            "episode_return_mean": result.mean,
            "episode_return_std": result.std,
            "num_episodes": len(result.returns),
            "num_unfinished_episodes": len(result.unfinished),
        }
        return self._keep(result.mean, summary, "evaluation")

    def keep_if_better_in_training(self, return_mean: float | None) -> bool:
        """The same by the training return, for runs without evaluations; None is not kept."""
        if return_mean is None:
            return False
        return self._keep(return_mean, {"episode_return_mean": return_mean}, "training")

    def _keep(self, score: float, summary: Mapping[str, Any], source: str) -> bool:
        if not math.isfinite(score):
            return False
        if self.score is not None and score < self.score and self.exists:
            return False
        self._write({**json_row(summary), "chosen_by": source})
        self.score = score
        return True

    def adopt(self, bundle: Path) -> None:
        """Replaces this policy by an earlier best one, such as that of a checkpoint."""
        with replacing_folder(self.path) as folder:
            shutil.copytree(bundle, folder, dirs_exist_ok=True)
        self.score = self._score_on_disk()

    def keep_any(self) -> None:
        """Writes the policy as it is now, without scores, if none was ever kept."""
        if not self.exists:
            self._write({})

    def _write(self, evaluation: dict[str, Any]) -> None:
        policy, settings = self._algo.learner_policy, self._algo.settings
        write_bundle(
            self.path,
            net=policy.net,
            spaces=(self._algo.config.raw_observation_space, policy.action_space),
            env=settings.env,
            normalizer=self._algo.observation_normalizer(),
            value_scale=(float(policy.value_stats.mean), float(policy.value_stats.std)),
            evaluation=evaluation,
            provenance={
                "run_id": self._run_id,
                "algorithm": settings.algorithm.name,
                "seed": settings.seed,
                "training_iteration": self._algo.iteration,
                "env_steps": self._algo.env_steps,
            },
        )

    def _score_on_disk(self) -> float | None:
        """Score of the existing bundle, which may be newer than a killed run's checkpoint."""
        try:
            spec = load_bundle(self.path, self._algo.settings.model.base_model).spec
        except BundleError:  # absent, or damaged: the next policy replaces it
            return None
        score = spec.evaluation.get("episode_return_mean")
        return float(score) if isinstance(score, int | float) else None


def register_best(
    bundle: Path,
    base_model: str | None,
    tracking: TrackingSettings,
    output_dir: Path,
    notify: Notify,
) -> PolicyVersion | None:
    """Registers a bundle, under its environment, model and algorithm.

    Args:
        bundle: its folder.
        base_model: folder or name of its language model, if any.
        tracking: may name the registry; else the environment does.
        output_dir: contains the registry, beside `checkpoints`, if neither names one.
        notify: receives one line that says why there is no version.

    Returns:
        The version; None if it could not be registered, which does not end the run.
    """
    given = tracking.registry or os.environ.get(REGISTRY_VARIABLE)
    try:
        registry = PolicyRegistry(given or str(output_dir / REGISTRY_FOLDER))
        return registry.register(bundle, base_model=base_model)
    except RLServiceError as error:
        notify(f"the best policy is not in the registry: {error}")
        return None
