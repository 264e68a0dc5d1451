"""How a trial stands: in a running experiment, and in what an experiment has left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rl_service.tuning.plan import ENDED

TrialStatus = Literal["waiting", "running", "paused", "finished", "stopped early", "failed"]
"""`stopped early`: by the scheduler or the time budget, for good. `paused` and `waiting` trials of
a stopped experiment continue with it."""

_STATUS: dict[str, TrialStatus] = {
    "PENDING": "waiting",
    "RUNNING": "running",
    "PAUSED": "paused",
    "ERROR": "failed",
}


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
    checkpoint: Any = None
    """Ray Tune's newest of the trial; None if it has none."""


def ranked(trials: Sequence[TrialView]) -> list[TrialView]:
    """Best score first; without one, and failed ones, last.

    Of equals, the one that ended better is the steadier; then the faster first.
    """

    def rank(trial: TrialView) -> tuple[bool, float, float, float]:
        scores = (trial.best_score, trial.score)
        best, last = (float("inf") if score is None else -score for score in scores)
        return (trial.status == "failed", best, last, trial.time_s or 0.0)

    return sorted(trials, key=rank)


def trial_status(status: str, result: Mapping[str, Any], *, is_cut: bool = False) -> TrialStatus:
    """Ours for one of Ray Tune's.

    Tune ends all trials alike, those that are through and those that it had to stop. A trial that
    was cut when the experiment was stopped continues with it.

    Args:
        status: Tune's.
        result: the trial's last report; empty before the first.
        is_cut: whether the experiment was stopped before the trial ended.
    """
    if status != "TERMINATED":
        return _STATUS[status]
    if result.get(ENDED):
        return "finished"
    if is_cut:
        return "paused" if result else "waiting"
    return "stopped early"


def trial_folder(trial_id: str) -> str:
    """Folder of a trial within its experiment."""
    return f"trial_{trial_id}"
