"""What an experiment reports: to an observer as it runs, to each trial's trackers, at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from rl_service.common.metrics import ENV_STEPS
from rl_service.policies.policy_versions import PolicyVersion
from rl_service.training.run import Run
from rl_service.training.tracking import Notify, RunStatus, Tracker, build_trackers
from rl_service.tuning.plan import SCORE, TuningPlan
from rl_service.tuning.space import SearchSpace
from rl_service.tuning.trial_view import TrialView, trial_folder

TRAINING_PREFIX = "train/"
"""Of a result's numbers that are a training's own."""


@dataclass(frozen=True)
class TuneResult:
    """Outcome of an experiment; its fields are the keys of the command's `--json` object."""

    experiment: str
    """Folder or URI, which `--resume` takes."""
    status: Literal["finished", "stopped"]
    trials: int
    failed: int
    env: str
    algo: str | None = None
    """Of the best trial, as what follows; None without one."""
    model: str | None = None
    seed: int | None = None
    best_trial: str | None = None
    best_values: dict[str, Any] | None = None
    best_score: float | None = None
    episodes: int = 0
    """That the best policy played at the end, on seeds which chose nothing."""
    episode_return_mean: float | None = None
    episode_return_std: float | None = None
    env_steps: int = 0
    """Sampled by all trials and seeds together."""
    policy: str | None = None
    """Folder of the best policy's bundle."""
    registered: str | None = None
    """`name:version` of it in the registry."""
    preset: str | None = None
    """Settings file of the best trial, which `train --config` takes."""


class TuningObserver(Protocol):
    """Watches an experiment; called from the process that drives it."""

    def on_start(self, plan: TuningPlan, experiment: str, max_concurrent: int) -> None:
        """The first trial is about to start, or to continue.

        Args:
            plan: the experiment.
            experiment: its folder or URI.
            max_concurrent: trials at a time.
        """

    def on_trials(self, trials: Sequence[TrialView]) -> None:
        """Something happened to a trial; all are given, in the order of their start."""

    def on_message(self, text: str) -> None:
        """Something that the user should know, in one line."""

    def on_finish(self, result: TuneResult, trials: Sequence[TrialView]) -> None:
        """The experiment ended or was stopped; not called after an exception."""


class TrialTrackers:
    """What the fixed settings' `tracking` asks for, for each trial; kept by the driver.

    Args:
        space: of the experiment.
        folder: the experiment's, on this machine; its name is the group.
        notify: takes lines that the user should see, once however many trials say them.
    """

    def __init__(self, space: SearchSpace, folder: Path, notify: Notify) -> None:
        self._space = space
        self._folder = folder
        self._notify = notify
        self._told: set[str] = set()
        self._open: dict[str, list[Tracker]] = {}

    def log(self, trial: TrialView, result: Mapping[str, Any]) -> None:
        """Adds a report's numbers."""
        if trial.trial_id not in self._open:
            self._open[trial.trial_id] = self._build(trial)
        row = {
            key.removeprefix(TRAINING_PREFIX): value
            for key, value in result.items()
            if key.startswith(TRAINING_PREFIX)
        }
        for tracker in self._open[trial.trial_id]:
            tracker.log(row | {SCORE: result[SCORE]}, result[ENV_STEPS])

    def finish(self, trial_id: str, status: RunStatus) -> None:
        """Lets go of a trial that has ended."""
        for tracker in self._open.pop(trial_id, []):
            tracker.finish(status)

    def finish_all(self, status: RunStatus) -> None:
        """Lets go of those that have not."""
        for trial_id in list(self._open):
            self.finish(trial_id, status)

    def keep_best(self, trial: TrialView, bundle: Path, version: PolicyVersion) -> None:
        """Adds the best policy to its trial, which has ended."""
        if self._space.base.tracking.wandb_project is None:  # nothing else keeps files
            return
        for tracker in self._build(trial):
            tracker.log_policy(bundle, version)
            tracker.finish("finished")

    def _build(self, trial: TrialView) -> list[Tracker]:
        settings = self._space.settings(trial.values)
        path = self._folder / trial_folder(trial.trial_id)
        path.mkdir(exist_ok=True)
        return build_trackers(Run(path, settings), settings, self._tell_once)

    def _tell_once(self, text: str) -> None:
        what = text.partition(":")[0]  # what follows is the trial's own: its URL, its folder
        if what not in self._told:
            self._told.add(what)
            self._notify(text)
