"""What an experiment leaves: the best policy, registered; a table, a preset, two figures."""

from __future__ import annotations

import csv
import io
import os
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import matplotlib.axes
import optuna
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import FrozenTrial

from custom_models.text import one_line
from rl_service.common.errors import RLServiceError, TuningError
from rl_service.common.files import as_folder_name, replacing_folder
from rl_service.common.storage import Storage
from rl_service.config.load import dump_settings
from rl_service.config.settings import CUT_REMEDY, Settings
from rl_service.policies.bundle import load_bundle
from rl_service.policies.policy_versions import PolicyVersion
from rl_service.training.best_policy import register_best
from rl_service.training.evaluation import EvaluationResult, evaluate
from rl_service.training.tracking import Notify
from rl_service.tuning.plan import TuningPlan
from rl_service.tuning.space import SearchSpace
from rl_service.tuning.trial import BUNDLE, member_seeds, seed_folder
from rl_service.tuning.trial_view import TrialView, ranked

RESULTS_FILE = "results.csv"
PRESET_FILE = "best.yaml"
IMPORTANCE_FILE = "importance.png"
COORDINATES_FILE = "parallel_coordinates.png"
FRESH_SEED_OFFSET = 2_000_000
"""The best policy plays episodes that neither training nor any evaluation of a trial has seen."""
_MAX_REASONS = 3
"""Shown at the end; the table has all."""
_MIN_TRIALS_FOR_FIGURES = 4
_DPI = 120


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
    plan: TuningPlan, storage: Storage, trials: Sequence[TrialView], notify: Notify
) -> BestOfTrials:
    """The best policy of the best trial that has one.

    Args:
        plan: of the experiment.
        storage: where it lies.
        trials: all of them.
        notify: takes the reasons why better trials are passed over.

    Raises:
        TuningError: with the reasons, if no trial left a policy.
    """
    reasons: list[str] = []
    for trial in filter(_is_scored, ranked(trials)):
        try:
            return _keep(plan, storage, trial, notify)
        except (RLServiceError, OSError) as error:
            reasons.append(one_line(error))
            notify(f"trial {trial.trial_id} is passed over: {reasons[-1]}")
    reasons += [trial.error for trial in trials if trial.error]
    shown = list(dict.fromkeys(reasons)) or ["none had a score"]
    more = f"; and {len(shown) - _MAX_REASONS} more reasons" if len(shown) > _MAX_REASONS else ""
    raise TuningError(
        f"none of {len(trials)} trials left a policy ({'; '.join(shown[:_MAX_REASONS])}{more})"
    )


def _keep(plan: TuningPlan, storage: Storage, trial: TrialView, notify: Notify) -> BestOfTrials:
    if trial.checkpoint is None:
        raise OSError("it has no checkpoint")
    with trial.checkpoint.as_directory() as folder:
        base_model = plan.space.settings(trial.values, plan.base.seed).model.base_model
        seed = _best_seed(plan, Path(folder), base_model)
        settings = plan.space.settings(trial.values, seed)
        # Beside the bundles of trainings; the experiment's name takes the place of a run's hash.
        output_dir = Path(os.path.abspath(settings.tracking.output_dir))
        group = Path(settings.model.short_name, as_folder_name(settings.env.id))
        bundle = output_dir / "checkpoints" / group / Path(storage.root).name
        remedy = "fix that, and resume with rl-service tune --resume"
        with replacing_folder(bundle, f"{remedy} {storage}") as empty:
            shutil.copytree(Path(folder, seed_folder(seed), BUNDLE), empty, dirs_exist_ok=True)
    played = _play(settings, bundle, base_model, notify)
    registered = register_best(bundle, base_model, settings.tracking, output_dir, notify)
    return BestOfTrials(trial, settings, bundle, played, registered)


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


def results_table(plan: TuningPlan, trials: Sequence[TrialView]) -> str:
    """All trials, best first, as CSV; failed ones last, with their reason."""
    keys = list(plan.space.domains)
    front = pareto_front(plan, trials)
    columns = ("best_score", "score", "env_steps", "env_steps_per_s", "time_s", "num_failures")
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(["trial", "status", *keys, *columns, "seed_scores", "pareto", "error"])
    for trial in ranked(trials):
        writer.writerow(
            [
                trial.trial_id,
                trial.status,
                *(trial.values.get(key) for key in keys),
                *(getattr(trial, column) for column in columns),
                " ".join(f"{score:g}" for score in trial.seed_scores),
                "yes" if trial.trial_id in front else "",
                trial.error,
            ]
        )
    return file.getvalue()


def best_preset(settings: Settings, experiment: str, trial: TrialView) -> str:
    """The best trial's settings as a file that `train --config` takes."""
    # What belongs to the machine and the moment is not part of a preset.
    text = dump_settings(settings.model_copy(update={"tracking": Settings().tracking}))
    score = "-" if trial.best_score is None else f"{trial.best_score:g}"
    source = f"trial {trial.trial_id} of the tuning experiment {experiment}, score {score}"
    return f"# Source: {source}.\n{text}"


def draw_figures(plan: TuningPlan, trials: Sequence[TrialView]) -> dict[str, bytes]:
    """Importance of each setting, and the trials as lines over all settings: PNG files by name.

    Raises:
        ValueError: if the trials are too few or do not differ.
    """
    study = _study(plan.space, trials)
    if len(study.trials) < _MIN_TRIALS_FOR_FIGURES:
        raise ValueError(
            f"they need {_MIN_TRIALS_FOR_FIGURES} trials with scores, and there are "
            f"{len(study.trials)}"
        )
    if len({trial.value for trial in study.trials}) < 2:
        raise ValueError("all trials have the same score")
    matplotlib.use("Agg")  # before pyplot, which would look for a screen
    plots = optuna.visualization.matplotlib
    with warnings.catch_warnings():
        # Optuna calls its drawing and this evaluator experimental, each time again.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return {
            IMPORTANCE_FILE: _png(
                plots.plot_param_importances(
                    study, evaluator=PedAnovaImportanceEvaluator(), target_name="best score"
                )
            ),
            COORDINATES_FILE: _png(plots.plot_parallel_coordinate(study, target_name="best score")),
        }


def pareto_front(plan: TuningPlan, trials: Sequence[TrialView]) -> set[str]:
    """Trials that no other beats in all objectives; the best alone if there is one objective."""
    objectives = plan.tuning.search_alg.objectives
    if len(objectives) == 1:
        best = next((t for t in ranked(trials) if _is_scored(t)), None)
        return set() if best is None else {best.trial_id}
    points = {
        trial.trial_id: (trial.best_score, trial.env_steps_per_s)
        for trial in trials
        if trial.status != "failed" and trial.best_score is not None and trial.env_steps_per_s
    }
    return {
        name
        for name, (score, speed) in points.items()
        if not any(
            (other_score, other_speed) != (score, speed)
            and other_score >= score
            and other_speed >= speed
            for other_score, other_speed in points.values()
        )
    }


def _study(space: SearchSpace, trials: Sequence[TrialView]) -> optuna.Study:
    """The finished trials as Optuna's, whatever drew them; by value, under the setting's name."""
    study = optuna.create_study(direction="maximize")
    study.add_trials([_frozen(space, trial) for trial in trials if _is_scored(trial)])
    return study


def _is_scored(trial: TrialView) -> bool:
    return trial.status != "failed" and trial.best_score is not None


def _frozen(space: SearchSpace, trial: TrialView) -> FrozenTrial:
    coordinates = space.coordinates(trial.values)
    return optuna.trial.create_trial(
        value=trial.best_score,
        params={space.domains[key].label(key): value for key, value in coordinates.items()},
        distributions={
            space.domains[key].label(key): space.domains[key].distribution for key in coordinates
        },
    )


def _png(axes: matplotlib.axes.Axes) -> bytes:
    from matplotlib import pyplot as plt

    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.set_size_inches(12, 6)
    content = io.BytesIO()
    figure.savefig(content, dpi=_DPI, bbox_inches="tight")
    plt.close(figure)
    return content.getvalue()
