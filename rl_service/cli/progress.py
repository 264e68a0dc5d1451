"""Shows a run while it trains: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from rl_service.cli.console import can_move_cursor, until_closed
from rl_service.cli.figures import (
    duration,
    evaluation_return,
    figure,
    short_path,
    sparkline,
    speed,
)
from rl_service.cli.pace import Pace
from rl_service.cli.summary import print_summary
from rl_service.config.settings import Settings
from rl_service.training.observer import TrainResult
from rl_service.training.progress_file import ProgressFile

_REFRESH_PER_S = 4.0
_SPARKLINE_WIDTH = 24


class PlainProgress:
    """One line per iteration, aligned, for pipes, files and CI."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._pace: Pace | None = None
        self._total_iterations: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing to tidy up."""

    def on_start(
        self,
        settings: Settings,
        run_path: Path,
        total_iterations: int | None,
        start_iteration: int,
    ) -> None:
        """Names the run, and the columns of what follows."""
        self._pace = Pace(settings, total_iterations)
        self._total_iterations = total_iterations
        self._print(_title(settings))
        self._print(_origin(run_path, start_iteration))
        self._print(
            f"{'iteration':>11}{'steps':>13}{'return':>10}{'length':>9}{'steps/s':>9}   left"
        )

    def on_iteration(self, row: Mapping[str, Any]) -> None:
        """Prints the iteration's line."""
        seconds_left = None
        if self._pace is not None:
            self._pace.update(row)
            seconds_left = self._pace.seconds_left
        self._print(
            f"{_iteration(row, self._total_iterations):>11}"
            f"{figure(row.get('num_env_steps_sampled_lifetime')):>13}"
            f"{figure(row.get('episode_return_mean'), 1):>10}"
            f"{figure(row.get('episode_len_mean')):>9}"
            f"{speed(row.get('env_steps_per_s')):>9}"
            f"{duration(seconds_left):>7}"
        )

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        """Prints the evaluation's line; its return stands below those of the iterations."""
        mean = figure(row.get("evaluation/episode_return_mean"), 1)
        std = figure(row.get("evaluation/episode_return_std"), 1)
        self._print(f"{'evaluation':>11}{mean:>23} ± {std}")

    def on_message(self, text: str) -> None:
        """Prints the line as it is."""
        self._print(text)

    def on_finish(self, result: TrainResult) -> None:
        """Prints the result and what one may do next."""
        console = Console(file=self._out, color_system=None, force_terminal=False, width=100)
        with until_closed(self._out):
            print_summary(console, result)

    def _print(self, line: str) -> None:
        with until_closed(self._out):
            print(line, file=self._out, flush=True)


class RichProgress:
    """A live view of three lines; evaluations and messages stay above it."""

    def __init__(self, out: TextIO) -> None:
        self._console = Console(file=out)
        self._view: _View | None = None
        self._live: Live | None = None
        spinner = Spinner("dots", " Starting the rollout workers")
        self._spinner = self._live_display(spinner, transient=True)

    def __enter__(self) -> Self:
        """Shows that something happens until the first step is sampled."""
        self._spinner.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Gives the cursor back, also after an exception."""
        self._spinner.stop()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def on_start(
        self,
        settings: Settings,
        run_path: Path,
        total_iterations: int | None,
        start_iteration: int,
    ) -> None:
        """Names the run and starts the live view, with the curve so far if it is resumed."""
        self._spinner.stop()
        self._console.print(Text(_title(settings), style="bold"))
        self._console.print(Text(_origin(run_path, start_iteration), style="dim"), soft_wrap=True)
        self._console.print()
        earlier_rows = ProgressFile(run_path / "progress.jsonl").read()
        self._view = _View(Pace(settings, total_iterations), total_iterations, earlier_rows)
        self._live = self._live_display(self._view)
        self._live.start()

    def on_iteration(self, row: Mapping[str, Any]) -> None:
        """Brings the live view up to date."""
        if self._view is not None:
            self._view.add(row)

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        """Adds a line above the live view."""
        is_best = self._view is not None and self._view.add_evaluation(row)
        self._console.print(
            Text.assemble(
                ("  evaluation at iteration ", "dim"),
                f"{figure(row.get('training_iteration')):>5}",
                ("   return ", "dim"),
                (f"{evaluation_return(row):>16}", "bold" if is_best else ""),
                ("   best so far" if is_best else "", "green"),
            )
        )

    def on_message(self, text: str) -> None:
        """Adds a line above the live view."""
        self._console.print(Text(text), soft_wrap=True)

    def on_finish(self, result: TrainResult) -> None:
        """Leaves the live view's last state on the screen and prints the result below."""
        self.__exit__(None, None, None)
        print_summary(self._console, result)

    def _live_display(self, content: RenderableType, transient: bool = False) -> Live:
        return Live(
            content,
            console=self._console,
            transient=transient,
            refresh_per_second=_REFRESH_PER_S,
            redirect_stdout=False,  # what others print goes to the run's log
            redirect_stderr=False,
        )


class _View:
    """What the live view shows."""

    def __init__(
        self, pace: Pace, total_iterations: int | None, earlier_rows: list[dict[str, Any]]
    ) -> None:
        self._pace = pace
        self._total_iterations = total_iterations
        self._row: Mapping[str, Any] = earlier_rows[-1] if earlier_rows else {}
        self._returns = _known(earlier_rows, "episode_return_mean")
        self._best = max(_known(earlier_rows, "evaluation/episode_return_mean"), default=None)

    def add(self, row: Mapping[str, Any]) -> None:
        self._pace.update(row)
        self._row = row
        self._returns += _known([row], "episode_return_mean")

    def add_evaluation(self, row: Mapping[str, Any]) -> bool:
        """Whether the evaluation is the best so far."""
        mean = row.get("evaluation/episode_return_mean")
        if mean is None or (self._best is not None and mean <= self._best):
            return False
        self._best = mean
        return True

    def __rich__(self) -> RenderableType:
        return Group("", self._progress_line(), self._return_line(), self._speed_line())

    def _progress_line(self) -> Table:
        share_done = self._pace.share_done
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_row(
            f"  iteration {_iteration(self._row, self._total_iterations)}",
            ProgressBar(total=1.0, completed=share_done or 0.0, width=30),
            f"{share_done:.0%}" if share_done is not None else "",
            Text(f"{duration(self._pace.seconds_left)} left", style="dim"),
        )
        return line

    def _return_line(self) -> Text:
        return Text.assemble(
            ("  return ", "dim"),
            (f"{figure(self._returns[-1] if self._returns else None, 1):>9}", "bold"),
            "   ",
            (sparkline(self._returns, _SPARKLINE_WIDTH), "cyan"),
            ("   best evaluation ", "dim") if self._best is not None else "",
            figure(self._best, 1) if self._best is not None else "",
        )

    def _speed_line(self) -> Text:
        return Text.assemble(
            ("  steps  ", "dim"),
            f"{figure(self._row.get('num_env_steps_sampled_lifetime')):>9}",
            ("   ", ""),
            f"{speed(self._row.get('env_steps_per_s'))}",
            (" steps/s", "dim"),
        )


def build_progress(out: TextIO) -> PlainProgress | RichProgress:
    """The display that suits the stream; use it as a context manager.

    Args:
        out: where our own lines go; not closed.
    """
    return RichProgress(out) if can_move_cursor(out) else PlainProgress(out)


def _title(settings: Settings) -> str:
    resources = settings.resources
    workers = resources.num_env_runners
    plural = "" if workers == 1 else "s"
    where = f"{workers} rollout worker{plural}" if workers else "one process"
    if resources.is_elastic:
        where = f"{resources.min_env_runners} to {resources.max_env_runners} rollout workers"
    names = f"{settings.model.name} with {settings.algorithm.name} on {settings.env.id}"
    return f"Training {names}, seed {settings.seed}, {where}"


def _origin(run_path: Path, start_iteration: int) -> str:
    resumed = f", resumed after iteration {start_iteration:,}" if start_iteration else ""
    return f"{short_path(run_path)}{resumed}"


def _iteration(row: Mapping[str, Any], total_iterations: int | None) -> str:
    done = f"{row.get('training_iteration', 0):,}"
    if total_iterations is None:
        return done
    total = f"{total_iterations:,}"
    return f"{done:>{len(total)}}/{total}"


def _known(rows: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [row[key] for row in rows if row.get(key) is not None and math.isfinite(row[key])]
