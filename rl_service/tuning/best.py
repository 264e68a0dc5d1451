"""Takes the best policy out of an experiment's checkpoints, plays it, and registers it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ray.tune.experiment import Trial

from rl_service.common.errors import RLServiceError, TuningError
from rl_service.common.files import as_folder_name, replacing_folder
from rl_service.common.text import one_line
from rl_service.config.settings import CUT_REMEDY, Settings
from rl_service.policies.bundle import load_bundle
from rl_service.policies.policy_versions import PolicyVersion
from rl_service.training.best_policy import register_best
from rl_service.training.evaluation import EvaluationResult, evaluate
from rl_service.training.tracking import Notify
from rl_service.tuning.load import TuningPlan
from rl_service.tuning.observer import TrialView
from rl_service.tuning.report import ranked
from rl_service.tuning.storage import ExperimentStorage
from rl_service.tuning.trial import BUNDLE, member_seeds, seed_folder

FRESH_SEED_OFFSET = 2_000_000
"""The best policy plays episodes that neither training nor any evaluation of a trial has seen."""


_MAX_REASONS = 3
"""Shown at the end; the table has all."""


@dataclass(frozen=True)
class BestOfTrials:
    """The best policy of an experiment."""

    trial: TrialView
    settings: Settings
    """Of its training, with its seed."""
    bundle: Path
    evaluation: EvaluationResult | None
    """On fresh seeds; None if the settings ask for no final episodes."""
    registered: PolicyVersion | None
    """None if it could not be registered."""


def keep_best(
    plan: TuningPlan,
    storage: ExperimentStorage,
    trials: Sequence[Trial],
    views: Sequence[TrialView],
    notify: Notify,
) -> BestOfTrials:
    """The best policy of the best trial that has one.

    Args:
        plan: of the experiment.
        storage: where it lies.
        trials: all of them.
        views: how each stands.
        notify: told why a better trial was passed over.

    Raises:
        TuningError: with the reasons, if no trial left a policy.
    """
    by_id = {trial.trial_id: trial for trial in trials}
    reasons: list[str] = []
    for view in ranked(views):
        if view.best_score is None or view.status == "failed":
            continue
        try:
            return _keep(plan, storage, by_id[view.trial_id], view, notify)
        except (RLServiceError, OSError) as error:
            reasons.append(one_line(error))
            notify(f"trial {view.trial_id} is passed over: {reasons[-1]}")
    reasons += [view.error for view in views if view.error]
    told = list(dict.fromkeys(reasons)) or ["none had a score"]
    more = f"; and {len(told) - _MAX_REASONS} more reasons" if len(told) > _MAX_REASONS else ""
    raise TuningError(
        f"none of {len(views)} trials left a policy ({'; '.join(told[:_MAX_REASONS])}{more})"
    )


def _keep(
    plan: TuningPlan,
    storage: ExperimentStorage,
    trial: Trial,
    view: TrialView,
    notify: Notify,
) -> BestOfTrials:
    if trial.checkpoint is None:
        raise OSError("it has no checkpoint")
    values = view.values
    with trial.checkpoint.as_directory() as folder:
        base_model = plan.space.settings(values, plan.base.seed).model.base_model
        seed = _best_seed(plan, Path(folder), base_model)
        settings = plan.space.settings(values, seed)
        bundle = _destination(settings, storage.name)
        remedy = "mend that, and go on with rl-service tune --resume"
        with replacing_folder(bundle, f"{remedy} {storage}") as empty:
            shutil.copytree(Path(folder, seed_folder(seed), BUNDLE), empty, dirs_exist_ok=True)
    played = _play(settings, bundle, base_model, notify)
    output_dir = Path(os.path.abspath(settings.tracking.output_dir))
    registered = register_best(bundle, base_model, settings.tracking, output_dir, notify)
    return BestOfTrials(view, settings, bundle, played, registered)


def _play(
    settings: Settings, bundle: Path, base_model: str | None, notify: Notify
) -> EvaluationResult | None:
    """The final episodes; None if the settings ask for none."""
    evaluation = settings.evaluation
    if evaluation.final_num_episodes == 0:
        return None
    result = evaluate(
        load_bundle(bundle, base_model),
        settings.env,
        num_episodes=evaluation.final_num_episodes,
        seed=settings.seed + FRESH_SEED_OFFSET,
        max_episode_steps=evaluation.max_episode_steps,
        on_message=notify,
    )
    cuts = result.cut_off_text(evaluation.max_episode_steps, CUT_REMEDY)
    if cuts:
        notify(cuts)
    return result


def _best_seed(plan: TuningPlan, checkpoint: Path, base_model: str | None) -> int:
    """The seed whose best policy has the highest score."""
    scores: dict[int, float] = {}
    for seed in member_seeds(plan.base.seed, plan.tuning.num_seeds):
        folder = checkpoint / seed_folder(seed) / BUNDLE
        if folder.exists():
            score = load_bundle(folder, base_model).spec.evaluation.get("episode_return_mean")
            scores[seed] = float(score) if isinstance(score, int | float) else float("-inf")
    if not scores:
        raise OSError("its checkpoint holds no policy")
    return max(scores, key=scores.__getitem__)


def _destination(settings: Settings, experiment: str) -> Path:
    """Beside the bundles of trainings; the experiment's name takes the place of a run's hash."""
    name = Path(settings.model.short_name, as_folder_name(settings.env.id), experiment)
    return Path(os.path.abspath(settings.tracking.output_dir), "checkpoints", name)
