"""TensorBoard and Weights & Biases for trials: one run each, grouped by experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_service.common.metrics import ENV_STEPS
from rl_service.policies.policy_versions import PolicyVersion
from rl_service.training.run import Run
from rl_service.training.tracking import Notify, RunStatus, Tracker, build_trackers
from rl_service.tuning.observer import TrialView
from rl_service.tuning.settings import SCORE
from rl_service.tuning.space import SearchSpace

TRAINING_PREFIX = "train/"
"""Of a result's numbers that are a training's own."""


def trial_folder(trial_id: str) -> str:
    """Folder of a trial within its experiment."""
    return f"trial_{trial_id}"


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
