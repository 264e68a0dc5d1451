"""What `tune` shows: a line for each change of a trial, or on a terminal a live table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TextIO

from rich.table import Table

from rl_service.cli.console import allowing, duration, figure, mean_std, speed
from rl_service.cli.display import Display
from rl_service.tuning.observer import TuneResult
from rl_service.tuning.plan import PBTSettings, TuningPlan
from rl_service.tuning.trial_view import TrialStatus, TrialView, ranked

_MAX_ROWS = 20
_STYLES: dict[TrialStatus, str] = {
    "waiting": "dim",
    "running": "cyan",
    "paused": "dim",
    "failed": "red",
}


class TuneDisplay(Display):
    """Shows an experiment; its live table has the best trial first."""

    def __init__(self, out: TextIO) -> None:
        super().__init__(out, "Starting ...")
        self._shown: dict[str, tuple[TrialStatus, int | None]] = {}

    def on_start(self, plan: TuningPlan, experiment: str, max_concurrent: int) -> None:
        """Names the experiment."""
        self._line((_title(plan, max_concurrent), "bold"))
        self._line((experiment, "dim"))

    def on_trials(self, trials: Sequence[TrialView]) -> None:
        """Brings the table up to date, or prints what has changed."""
        if self.is_live:
            self._show(_table(trials))
            return
        for trial in trials:
            state = (trial.status, trial.env_steps)
            if trial.status == "waiting" or self._shown.get(trial.trial_id) == state:
                continue
            starts = trial.status == "running" and trial.trial_id not in self._shown
            self._shown[trial.trial_id] = state
            self._line(_start_line(trial) if starts else _trial_line(trial))

    def on_finish(self, result: TuneResult, trials: Sequence[TrialView]) -> None:
        """Leaves the last table on the screen and prints the result and the next commands."""
        if self.is_live:
            self._show(_table(trials))
            self._live.stop()
        else:
            self._console.print(_table(trials))
        failed = f", {result.failed} failed" if result.failed else ""
        self._line(f"{result.trials} trials{failed}, {result.env_steps:,} env steps")
        if result.status == "stopped":
            self._line(f"Stopped. Continue with: rl-service tune --resume {result.experiment}")
            return
        played = ""
        if result.episodes:
            episode_return = mean_std(result.episode_return_mean, result.episode_return_std)
            played = f"; its best policy on {result.episodes} fresh episodes: {episode_return}"
        self._line(f"Best: trial {result.best_trial}, score {figure(result.best_score, 1)}{played}")
        for key, value in (result.best_values or {}).items():
            self._line(f"  {key}: {_shown(value)}")
        self._line(f"Policy: {result.policy}")
        self._line(f"In the registry: {result.registered or 'no'}")
        self._line(f"Settings: {result.preset}")
        self._line("Next:")
        self._line(f"  rl-service train --config {result.preset}")
        if result.registered:
            self._line(f"  rl-service serve {result.registered}{allowing(result.model or '')}")


def _title(plan: TuningPlan, max_concurrent: int) -> str:
    tuning, base = plan.tuning, plan.base
    seeds = f" x {tuning.num_seeds} seeds" if tuning.num_seeds > 1 else ""
    is_population = isinstance(tuning.scheduler, PBTSettings)  # takes no searcher
    search = "random at first" if is_population else tuning.search_alg.name
    return (
        f"Tuning {base.model.name} with {base.algorithm.name} on {base.env.id}: "
        f"{tuning.num_samples} trials{seeds}, {max_concurrent} at a time, search "
        f"{search}, scheduler {tuning.scheduler.name}"
    )


def _start_line(trial: TrialView) -> str:
    values = ", ".join(f"{_short(key)} {_shown(value)}" for key, value in trial.values.items())
    begins = "starts" if trial.env_steps is None else "continues"
    return f"{trial.trial_id}  {begins:<12}{values}"


def _trial_line(trial: TrialView) -> str:
    return (
        f"{trial.trial_id}  {trial.status:<13}{figure(trial.env_steps):>12} steps"
        f"{figure(trial.score, 1):>10}   best {figure(trial.best_score, 1):>8}"
    )


def _table(trials: Sequence[TrialView]) -> Table:
    best_first = ranked(trials)[:_MAX_ROWS]
    keys = list(dict.fromkeys(key for trial in trials for key in trial.values))
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("trial", min_width=8, no_wrap=True)
    table.add_column("status", min_width=8, no_wrap=True)
    for name in ("steps", "steps/s", "score", "best", *map(_short, keys), "time"):
        table.add_column(name, justify="right")
    for trial in best_first:
        table.add_row(
            trial.trial_id,
            trial.status,
            figure(trial.env_steps),
            speed(trial.env_steps_per_s),
            figure(trial.score, 1),
            figure(trial.best_score, 1),
            *(_shown(trial.values.get(key)) for key in keys),
            duration(trial.time_s),
            style=_STYLES.get(trial.status, ""),
        )
    if len(trials) > len(best_first):
        table.caption = f"and {len(trials) - len(best_first)} more"
    return table


def _short(key: str) -> str:
    name = key.partition(".")[2]
    return key if name == "name" else name


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
