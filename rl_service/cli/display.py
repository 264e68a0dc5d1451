"""What `train` shows: lines, and on a terminal a live view below them. `tune` builds on it."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TextIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from rl_service.cli.console import allowing, duration, figure, mean_std, short_path, speed
from rl_service.config.settings import Settings
from rl_service.training.observer import TrainResult
from rl_service.training.progress_file import ProgressFile

_WIDE = 10_000
"""Columns where there is no terminal: values and lines are never cut there."""
_SPARKS, _SPARKLINE_WIDTH = "▁▂▃▄▅▆▇█", 24
_RECENT_ROWS = 20


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Lets a run continue when its reader has gone (`rl-service train | head`)."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)


class Display:
    """Prints lines, and on a terminal a live view below them.

    A context manager, which gives the cursor back, also after an exception.

    Args:
        out: where our own lines go; not closed.
        starting: what the live view says until there is something to show.
    """

    def __init__(self, out: TextIO, starting: str) -> None:
        self.is_live = out.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
        if self.is_live:
            self._console = _Console(file=out)
        else:
            self._console = _Console(file=out, color_system=None, force_terminal=False, width=_WIDE)
        self._live = Live(
            Spinner("dots", f" {starting}"),
            console=self._console,
            transient=True,  # until there is something to show
            redirect_stdout=False,  # what others print goes to the log
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        if self.is_live:
            self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def on_message(self, text: str) -> None:
        """Prints a line."""
        self._line(text)

    def _line(self, *parts: str | tuple[str, str]) -> None:
        """Prints a line of texts and `(text, style)`, never wrapped: commands are to be copied."""
        self._console.print(Text.assemble(*parts), soft_wrap=True)

    def _show(self, view: RenderableType) -> None:
        """Replaces the live view; its last state stays on the screen."""
        self._live.update(view, refresh=self.is_live)
        self._live.transient = not self.is_live


class TrainDisplay(Display):
    """Shows a run: a line for each iteration, or a live view of three lines."""

    def __init__(self, out: TextIO) -> None:
        super().__init__(out, "Starting the rollout workers")

    def on_start(
        self,
        settings: Settings,
        run_path: Path,
        total_iterations: int | None,
        start_iteration: int,
    ) -> None:
        """Names the run; the live view of a resumed one has the curve so far."""
        rows = ProgressFile(run_path / "progress.jsonl").read()
        self._pace = Pace(settings, total_iterations)
        self._total_iterations = total_iterations
        self._row: Mapping[str, Any] = rows[-1] if rows else {}
        self._returns = _known(rows, "episode_return_mean")
        self._best = max(_known(rows, "evaluation/episode_return_mean"), default=None)
        resumed = f", resumed after iteration {start_iteration:,}" if start_iteration else ""
        self._line((_title(settings), "bold"))
        self._line((f"{short_path(run_path)}{resumed}", "dim"))
        headings = f"{'iteration':>11}{'steps':>13}{'return':>10}{'length':>9}{'steps/s':>9}   left"
        self._line("" if self.is_live else headings)
        self._show(self)

    def on_iteration(self, row: Mapping[str, Any]) -> None:
        """Brings the live view up to date, or prints the iteration's line."""
        self._pace.update(row)
        self._row = row
        self._returns += _known([row], "episode_return_mean")
        if not self.is_live:
            self._line(
                f"{self._iteration():>11}"
                f"{figure(row.get('num_env_steps_sampled_lifetime')):>13}"
                f"{figure(row.get('episode_return_mean'), 1):>10}"
                f"{figure(row.get('episode_len_mean')):>9}"
                f"{speed(row.get('env_steps_per_s')):>9}"
                f"{duration(self._pace.seconds_left):>7}"
            )

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        """Prints the evaluation's line; in a pipe its return is below those of the iterations."""
        mean, std = (row.get(f"evaluation/episode_return_{name}") for name in ("mean", "std"))
        is_best = mean is not None and (self._best is None or mean > self._best)
        if is_best:
            self._best = mean
        if not self.is_live:
            self._line(f"{'evaluation':>11}{figure(mean, 1):>23} ± {figure(std, 1)}")
            return
        self._line(
            ("  evaluation at iteration ", "dim"),
            f"{figure(row.get('training_iteration')):>5}",
            ("   return ", "dim"),
            (f"{mean_std(mean, std):>16}", "bold" if is_best else ""),
            ("   best so far" if is_best else "", "green"),
        )

    def on_finish(self, result: TrainResult) -> None:
        """Prints the final evaluation, the bundle and the next commands."""
        self._live.stop()
        self._line("")
        self._line((_headline(result), "bold"))
        if result.episodes:
            self._line("\nEvaluation of the best policy, with deterministic actions:")
            self._console.print(_evaluation_table(result))
        if result.policy:
            self._line(f"Best policy: {short_path(result.policy)}")
        if result.registered:
            self._line(f"In the registry: {result.registered}")
        self._line("\nNext:")
        for command, purpose in _next_commands(result):
            self._line("  ", (command, "cyan"))
            self._line((f"      {purpose}", "dim"))

    def __rich__(self) -> RenderableType:
        share_done = self._pace.share_done
        progress = Table.grid(padding=(0, 2, 0, 0))
        progress.add_row(
            f"  iteration {self._iteration()}",
            ProgressBar(total=1.0, completed=share_done or 0.0, width=30),
            f"{share_done:.0%}" if share_done is not None else "",
            Text(f"{duration(self._pace.seconds_left)} left", style="dim"),
        )
        returns = Text.assemble(
            ("  return ", "dim"),
            (f"{figure(self._returns[-1] if self._returns else None, 1):>9}", "bold"),
            "   ",
            (sparkline(self._returns, _SPARKLINE_WIDTH), "cyan"),
            ("   best evaluation ", "dim") if self._best is not None else "",
            figure(self._best, 1) if self._best is not None else "",
        )
        steps = Text.assemble(
            ("  steps  ", "dim"),
            f"{figure(self._row.get('num_env_steps_sampled_lifetime')):>9}",
            f"   {speed(self._row.get('env_steps_per_s'))}",
            (" steps/s", "dim"),
        )
        return Group("", progress, returns, steps)

    def _iteration(self) -> str:
        done = f"{self._row.get('training_iteration', 0):,}"
        if self._total_iterations is None:
            return done
        total = f"{self._total_iterations:,}"
        return f"{done:>{len(total)}}/{total}"


class Pace:
    """Share done and time left of a run, from its rows and its limits.

    The time of an iteration is the mean of the recent ones, evaluations between them included. A
    run ends at the first of its limits; a limit on the return cannot be foreseen.
    """

    def __init__(self, settings: Settings, total_iterations: int | None) -> None:
        self._stop = settings.stop
        self._steps_per_iteration = settings.algorithm.train_batch_size
        self._total_iterations = total_iterations
        self._row_times: deque[float] = deque(maxlen=_RECENT_ROWS)
        self._row: Mapping[str, Any] = {}

    def update(self, row: Mapping[str, Any]) -> None:
        """Takes a row when its iteration has just ended."""
        self._row = row
        self._row_times.append(time.monotonic())

    @property
    def share_done(self) -> float | None:
        """From 0 to 1; None if no limit can be foreseen or nothing was done yet."""
        shares = [done / limit for done, limit, _ in self._limits()]
        return min(1.0, max(shares)) if shares else None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the first limit, counted from now; None if that is unknown."""
        left = [(limit - done) * unit_s for done, limit, unit_s in self._limits()]
        if not left:
            return None
        return max(0.0, min(left) - (time.monotonic() - self._row_times[-1]))

    def _limits(self) -> list[tuple[float, float, float]]:
        """For each limit that there is: done, allowed, and the seconds that one unit takes."""
        iteration_s = float(self._row.get("iteration_time_s") or 0.0)
        if len(self._row_times) > 1:
            iteration_s = (self._row_times[-1] - self._row_times[0]) / (len(self._row_times) - 1)
        step_s = iteration_s / self._steps_per_iteration
        limits = [
            ("training_iteration", self._total_iterations, iteration_s),
            ("num_env_steps_sampled_lifetime", self._stop.env_steps, step_s),
            ("time_total_s", self._stop.time_s, 1.0),
        ]
        return [
            (self._row[key], limit, unit_s)
            for key, limit, unit_s in limits
            if limit is not None and key in self._row
        ]


def _title(settings: Settings) -> str:
    resources = settings.resources
    workers = resources.num_env_runners
    plural = "" if workers == 1 else "s"
    where = f"{workers} rollout worker{plural}" if workers else "one process"
    if resources.is_elastic:
        where = f"{resources.min_env_runners} to {resources.max_env_runners} rollout workers"
    if resources.num_learners > 1:
        where += f", {resources.num_learners} learners"
    names = f"{settings.model.name} with {settings.algorithm.name} on {settings.env.id}"
    return f"Training {names}, seed {settings.seed}, {where}"


def _headline(result: TrainResult) -> str:
    done = f"{result.iterations:,} iterations, {result.env_steps:,} env steps"
    if result.status == "stopped":
        return f"Stopped on request after {done}; a checkpoint is saved."
    return f"Finished: {done} at {speed(result.env_steps_per_s)} steps/s."


def _evaluation_table(result: TrainResult) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("env", no_wrap=True)
    table.add_column("model", no_wrap=True)
    table.add_column("episodes", justify="right")
    table.add_column("episode return", justify="right", no_wrap=True)
    episode_return = mean_std(result.episode_return_mean, result.episode_return_std)
    table.add_row(
        result.env, result.model, str(result.episodes), Text(episode_return, style="bold")
    )
    return table


def _next_commands(result: TrainResult) -> list[tuple[str, str]]:
    run = short_path(result.run)
    resume = (f"rl-service train --resume {run}", "continue where it stopped")
    if result.status == "finished":  # its own limit is reached: to continue takes another one
        resume = (f"{resume[0]} -ne {2 * result.iterations}", "train twice as long")
    commands = [
        resume,
        (f"rl-service ui {short_path(Path(result.run).parents[2])}", "look at the curves"),
    ]
    if result.policy:
        evaluate = f"rl-service evaluate {short_path(result.policy)}{allowing(result.model)}"
        commands.insert(0, (evaluate, "play more episodes; --video FILE.mp4 shows one"))
    return commands


def _known(rows: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [row[key] for row in rows if row.get(key) is not None and math.isfinite(row[key])]


def sparkline(values: Sequence[float], width: int) -> str:
    """A curve of at most `width` characters; each stands for the mean of its share of values."""
    if not values:
        return ""
    num_columns = min(width, len(values))
    edges = [round(i * len(values) / num_columns) for i in range(num_columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, span = min(means), (max(means) - min(means)) or 1.0
    return "".join(_SPARKS[int((mean - low) / span * (len(_SPARKS) - 1))] for mean in means)
