"""What a tuning experiment tells whoever watches it, and what it returns at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rl_service.tuning.load import TuningPlan

TrialStatus = Literal["waiting", "running", "paused", "finished", "stopped early", "failed"]
"""`stopped early`: by the scheduler or the time budget, for good. `paused` and `waiting` trials of
an experiment that was stopped go on with it."""


@dataclass(frozen=True)
class TrialView:
    """How a trial stands."""

    trial_id: str
    status: TrialStatus
    values: dict[str, Any]
    """What its settings were drawn to, by setting."""
    env_steps: int | None
    """Of each seed; None before its first report, as the rest."""
    score: float | None
    best_score: float | None
    env_steps_per_s: float | None
    time_s: float | None
    """That it has run for."""
    num_failures: int = 0
    """Times that its process or node died."""
    error: str | None = None
    """One line; None if it has not failed."""
    seed_scores: list[float] = field(default_factory=list)


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
        """The first trial is about to start, or to go on.

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
