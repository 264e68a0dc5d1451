"""What an experiment leaves to read: a table, the best settings as a preset, two figures."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import matplotlib.axes
import optuna
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import FrozenTrial

from rl_service.config.load import dump_settings
from rl_service.config.settings import Settings
from rl_service.tuning.load import TuningPlan
from rl_service.tuning.observer import TrialView
from rl_service.tuning.space import SearchSpace

RESULTS_FILE = "results.csv"
PRESET_FILE = "best.yaml"
IMPORTANCE_FILE = "importance.png"
COORDINATES_FILE = "parallel_coordinates.png"
_MIN_TRIALS_FOR_FIGURES = 4
_DPI = 120


def write_table(path: Path, plan: TuningPlan, trials: Sequence[TrialView]) -> None:
    """All trials, best first, as CSV; failed ones last, with their reason."""
    keys = list(plan.space.domains)
    front = pareto_front(plan, trials)
    columns = ("best_score", "score", "env_steps", "env_steps_per_s", "time_s", "num_failures")
    with path.open("w", newline="", encoding="utf-8") as file:
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


def write_preset(path: Path, settings: Settings, experiment: str, trial: TrialView) -> None:
    """The best trial's settings as a file that `train --config` takes."""
    # What belongs to the machine and the moment is not part of a preset.
    text = dump_settings(settings.model_copy(update={"tracking": Settings().tracking}))
    score = "-" if trial.best_score is None else f"{trial.best_score:g}"
    source = f"trial {trial.trial_id} of the tuning experiment {experiment}, score {score}"
    path.write_text(f"# Source: {source}.\n{text}", encoding="utf-8")


def write_figures(folder: Path, plan: TuningPlan, trials: Sequence[TrialView]) -> list[str]:
    """Importance of each setting, and the trials as lines over all settings.

    Returns:
        Why a figure is missing, one line each.
    """
    study = _study(plan.space, trials)
    if len(study.trials) < _MIN_TRIALS_FOR_FIGURES:
        return [
            f"no figures: they need {_MIN_TRIALS_FOR_FIGURES} trials with scores, and there are "
            f"{len(study.trials)}"
        ]
    if len({trial.value for trial in study.trials}) < 2:
        return ["no figures: all trials have the same score"]
    matplotlib.use("Agg")  # before pyplot, which would look for a screen
    with warnings.catch_warnings():
        # Optuna calls its drawing and this evaluator experimental, each time anew.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        _save(
            folder / IMPORTANCE_FILE,
            optuna.visualization.matplotlib.plot_param_importances(
                study, evaluator=PedAnovaImportanceEvaluator(), target_name="best score"
            ),
        )
        _save(
            folder / COORDINATES_FILE,
            optuna.visualization.matplotlib.plot_parallel_coordinate(
                study, target_name="best score"
            ),
        )
    return []


def ranked(trials: Sequence[TrialView]) -> list[TrialView]:
    """Best score first; without one, and failed ones, last.

    Of equals, the one that ended better is the steadier; then the faster first.
    """

    def rank(trial: TrialView) -> tuple[bool, float, float, float]:
        scores = (trial.best_score, trial.score)
        best, last = (float("inf") if score is None else -score for score in scores)
        return (trial.status == "failed", best, last, trial.time_s or 0.0)

    return sorted(trials, key=rank)


def pareto_front(plan: TuningPlan, trials: Sequence[TrialView]) -> set[str]:
    """Trials that no other beats in all objectives; the best alone where there is one objective."""
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


def _save(path: Path, axes: matplotlib.axes.Axes) -> None:
    from matplotlib import pyplot as plt

    figure = axes.get_figure(root=True)
    if figure is not None:
        figure.set_size_inches(12, 6)
        figure.savefig(path, dpi=_DPI, bbox_inches="tight")
        plt.close(figure)
