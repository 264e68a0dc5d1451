"""Shows a tuning experiment: a live table on a terminal, a line for each change elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rl_service.cli.console import can_move_cursor, until_closed
from rl_service.cli.figures import duration, figure, mean_std, speed
from rl_service.tuning.observer import TrialStatus, TrialView, TuneResult, ranked
from rl_service.tuning.plan import PBTSettings, TuningPlan

_MAX_ROWS = 20
_STYLES: dict[TrialStatus, str] = {
    "waiting": "dim",
    "running": "cyan",
    "paused": "dim",
    "finished": "",
    "stopped early": "",
    "failed": "red",
}
_WIDE = 10_000
"""Columns of what is no terminal: values are whole there, and lines as long as they are."""


class PlainTuningProgress:
    """One line for each score and each end of a trial, for pipes, files and CI."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._console = Console(file=out, color_system=None, force_terminal=False, width=_WIDE)
        self._shown: dict[str, tuple[Any, ...]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing to tidy up."""

    def on_start(self, plan: TuningPlan, experiment: str, max_concurrent: int) -> None:
        """Names the experiment."""
        self._line(_title(plan, max_concurrent))
        self._line(experiment)

    def on_trials(self, trials: Sequence[TrialView]) -> None:
        """Prints what has changed."""
        for trial in trials:
            state = (trial.status, trial.env_steps)
            if trial.status == "waiting" or self._shown.get(trial.trial_id) == state:
                continue
            is_new = trial.trial_id not in self._shown
            self._shown[trial.trial_id] = state
            starts = is_new and trial.status == "running"
            self._line(_start_line(trial) if starts else _trial_line(trial))

    def on_message(self, text: str) -> None:
        """Prints the line as it is."""
        self._line(text)

    def on_finish(self, result: TuneResult, trials: Sequence[TrialView]) -> None:
        """Prints the table and the result."""
        with until_closed(self._out):
            self._console.print(_table(trials))
            print_tuning_summary(self._console, result)

    def _line(self, text: str) -> None:
        with until_closed(self._out):
            print(text, file=self._out, flush=True)


class RichTuningProgress:
    """A live table, the best trial first; messages stay above it."""

    def __init__(self, out: TextIO) -> None:
        self._console = Console(file=out)
        self._live = Live(
            Text("Starting ..."),
            console=self._console,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Gives the cursor back, also after an exception."""
        self._live.stop()

    def on_start(self, plan: TuningPlan, experiment: str, max_concurrent: int) -> None:
        """Names the experiment."""
        self._console.print(Text(_title(plan, max_concurrent), style="bold"))
        self._console.print(Text(experiment, style="dim"), soft_wrap=True)

    def on_trials(self, trials: Sequence[TrialView]) -> None:
        """Draws the table anew."""
        self._live.update(_table(trials))

    def on_message(self, text: str) -> None:
        """Adds a line above the table."""
        self._console.print(Text(text), soft_wrap=True)

    def on_finish(self, result: TuneResult, trials: Sequence[TrialView]) -> None:
        """Leaves the last table on the screen and prints the result below."""
        self._live.update(_table(trials))
        self._live.stop()
        print_tuning_summary(self._console, result)


def build_tuning_progress(out: TextIO) -> PlainTuningProgress | RichTuningProgress:
    """The display that suits the stream; use it as a context manager."""
    return RichTuningProgress(out) if can_move_cursor(out) else PlainTuningProgress(out)


def print_tuning_summary(console: Console, result: TuneResult) -> None:
    """The result, and what one may do next."""

    def line(text: str) -> None:
        console.print(Text(text), soft_wrap=True)

    failed = f", {result.failed} failed" if result.failed else ""
    line(f"{result.trials} trials{failed}, {result.env_steps:,} env steps")
    if result.status == "stopped":
        line(f"Stopped. Go on with: rl-service tune --resume {result.experiment}")
        return
    played = f"; its best policy on {result.episodes} fresh episodes: " + mean_std(
        result.episode_return_mean, result.episode_return_std
    )
    line(
        f"Best: trial {result.best_trial}, score {figure(result.best_score, 1)}"
        f"{played if result.episodes else ''}"
    )
    for key, value in (result.best_values or {}).items():
        line(f"  {key}: {_shown(value)}")
    line(f"Policy: {result.policy}")
    line(f"In the registry: {result.registered or 'no'}")
    line(f"Settings: {result.preset}")
    line("Next:")
    line(f"  rl-service train --config {result.preset}")
    if result.registered:
        line(f"  rl-service serve {result.registered}")


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
    begins = "starts" if trial.env_steps is None else "goes on"
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
            style=_STYLES[trial.status],
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
