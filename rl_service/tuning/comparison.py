"""Compares runs: reads them, draws one figure a metric, writes the table."""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure  # without pyplot, which would look for a screen
from matplotlib.lines import Line2D

from custom_models.text import nearest
from rl_service.common.errors import OutputError, SettingsError
from rl_service.common.files import as_folder_name, output_errors, replacing_folder
from rl_service.common.metrics import METRICS, NUMERIC
from rl_service.tuning.curves import Band, RunGroup, load_groups

RESULTS_CSV, RESULTS_MD = "results.csv", "results.md"
HEADINGS = (
    *("group", "runs", "seeds", "env steps"),
    *("final return", "best return", "final evaluation", "best evaluation"),
)
DEFAULT_METRICS = (
    "episode_return_mean",
    "evaluation/episode_return_mean",
    "policy_loss",
    "vf_loss",
    "entropy",
    "mean_kl_loss",
    "vf_explained_var",
    "env_steps_per_s",
    "num_env_runners",
)
_DPI = 120
_LEGEND_WIDTH = 90  # characters
_COLOURS = 10  # of Matplotlib's cycle; then the same with another dash
_DASHES = ("-", "--", ":", "-.")


class Spread(NamedTuple):
    """A number over several runs."""

    mean: float
    std: float | None
    """Sample standard deviation; None for a single run."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(fmean(values), stdev(values) if len(values) > 1 else None)

    def __str__(self) -> str:
        deviation = "" if self.std is None else f" ± {self.std:,.1f}"
        return f"{self.mean:,.1f}{deviation}"


Returns = dict[str, Spread | None]
"""`final_return` and `best_return` in training, `final_evaluation` and `best_evaluation`; None if
a run of the group has no such number."""


class Comparison(NamedTuple):
    folder: Path
    """Absolute."""
    groups: list[RunGroup]
    figures: list[Path]
    notes: list[str]
    """What a figure leaves out, one line each."""


def compare(runs: Sequence[str], folder: Path, *, metrics: Sequence[str] = ()) -> Comparison:
    """Writes figures and a table of runs, those of one label together.

    Args:
        runs: each a run's folder, its id under `./runs`, or `LABEL=` and one of them.
        folder: receives the files; an earlier comparison there is replaced as a whole.
        metrics: keys of `rl_service.common.metrics.METRICS`; empty: those of the usual ones that
            the runs have.

    Raises:
        CheckpointError: if there is no such run, or it is damaged or has no iterations yet.
        OutputError: if the folder cannot be written or holds other files.
        SettingsError: if a label or a metric is wrong.
    """
    folder = folder.resolve()
    _check_metrics(metrics)
    _check_folder(folder)
    groups = load_groups(runs)
    chosen = _chosen(metrics, groups)
    figures, notes = [], []
    with replacing_folder(folder) as staged:
        for metric in chosen:
            bands, left_out = _bands(metric, groups)
            notes += left_out
            if bands:
                _draw(staged / _figure_name(metric), metric, bands)
                figures.append(folder / _figure_name(metric))
        _write_results(staged, groups)
    return Comparison(folder, groups, figures, notes)


def _check_metrics(metrics: Sequence[str]) -> None:
    problems = []
    for metric in metrics:
        if metric not in NUMERIC:
            near = nearest(metric, NUMERIC)
            hint = f"did you mean {near}?" if near else f"usual ones: {', '.join(DEFAULT_METRICS)}"
            problems.append(f"--metric {metric} is unknown; {hint}")
    if problems:
        raise SettingsError(problems)


def _check_folder(folder: Path) -> None:
    """Refuses a folder in which something else than an earlier comparison would be lost."""
    if folder == Path.cwd():  # it would be another folder afterwards, and its shell in none
        raise OutputError(f"{folder} is the current folder; choose one in it (-o)")
    with output_errors(folder):
        if not folder.exists():
            return
        found = sorted(path.name for path in folder.iterdir())
    ours = {RESULTS_CSV, RESULTS_MD, *map(_figure_name, NUMERIC)}
    foreign = [name for name in found if name not in ours]
    if foreign:
        raise OutputError(
            f"{folder} holds {foreign[0]}, which no comparison wrote and which would be lost; "
            f"choose another output folder (-o)"
        )


def _chosen(metrics: Sequence[str], groups: Sequence[RunGroup]) -> list[str]:
    """The metrics to draw; each has values in some run."""
    there = {metric for group in groups for run in group.runs for metric in run.curves}
    missing = [metric for metric in metrics if metric not in there]
    if missing:
        raise SettingsError(
            f"--metric {missing[0]}: no run has values of it; they have {', '.join(sorted(there))}"
        )
    return list(dict.fromkeys(metrics)) or [m for m in DEFAULT_METRICS if m in there]


def _bands(metric: str, groups: Sequence[RunGroup]) -> tuple[dict[str, Band], list[str]]:
    """The groups that can be drawn, by label, and a note for each that cannot."""
    found = {group.label: group.band(metric) for group in groups}
    notes = [
        f"{_figure_name(metric)} leaves out '{group.label}': {_reason(group, metric)}"
        for group in groups
        if found[group.label] is None
    ]
    return {label: band for label, band in found.items() if band is not None}, notes


def _reason(group: RunGroup, metric: str) -> str:
    if group.curves(metric) is not None:
        return "its runs share no env steps"
    number = sum(metric not in run.curves for run in group.runs)
    return f"{number} of its {len(group.runs)} runs have no values"


def _figure_name(metric: str) -> str:
    """File of a metric's figure."""
    return f"{as_folder_name(metric)}.png"


def _draw(path: Path, metric: str, bands: Mapping[str, Band]) -> None:
    """Draws a line and a band for each group.

    Args:
        path: the PNG file.
        metric: a key of `rl_service.common.metrics.METRICS`.
        bands: by label.
    """
    figure = Figure(figsize=(7, 4 + 0.2 * len(bands)), dpi=_DPI, layout="constrained")
    axes = figure.subplots()
    lines = [_draw_band(axes, i, band) for i, band in enumerate(bands.values())]
    unit = METRICS[metric].unit
    axes.set_title(METRICS[metric].meaning, fontsize=10)
    axes.set_xlabel("env steps")
    axes.set_ylabel(metric if unit == "1" else f"{metric} ({unit})")
    axes.grid(alpha=0.3)
    # Given one by one, or Matplotlib would leave out labels that begin with an underscore.
    figure.legend(
        lines,
        [_shown(label) for label in bands],
        loc="outside lower center",
        fontsize=8,
        frameon=False,
    )
    figure.savefig(path)


def _draw_band(axes: Axes, index: int, band: Band) -> Line2D:
    colour, dashes = f"C{index % _COLOURS}", _DASHES[index // _COLOURS % len(_DASHES)]
    marker = "o" if len(band.env_steps) == 1 else None  # a line of one point is not seen
    axes.fill_between(band.env_steps, band.low, band.high, color=colour, alpha=0.2, linewidth=0)
    [line] = axes.plot(band.env_steps, band.mean, color=colour, linestyle=dashes, marker=marker)
    return line


def _shown(label: str) -> str:
    return textwrap.fill(label.replace("$", r"\$"), _LEGEND_WIDTH)  # `$` would begin a formula


def _write_results(folder: Path, groups: Sequence[RunGroup]) -> None:
    """Writes the table as CSV with all digits, and as Markdown to be read."""
    rows = [table_row(group) for group in groups]
    with (folder / RESULTS_CSV).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (folder / RESULTS_MD).write_text(_markdown(groups), encoding="utf-8")


def table_row(group: RunGroup) -> dict[str, Any]:
    """Plain values by column of the CSV file."""
    row: dict[str, Any] = {
        "group": group.label,
        "runs": len(group.runs),
        "seeds": " ".join(map(str, group.seeds)),
        "env_steps_min": min(group.env_steps),
        "env_steps_max": max(group.env_steps),
    }
    for name, spread in _returns(group).items():
        row[f"{name}_mean"], row[f"{name}_std"] = spread or (None, None)
    return row


def table_cells(group: RunGroup) -> list[str]:
    """The row as it is read, under HEADINGS."""
    least, most = min(group.env_steps), max(group.env_steps)
    return [
        group.label,
        str(len(group.runs)),
        ", ".join(map(str, group.seeds)),
        f"{most:,}" if least == most else f"{least:,}–{most:,}",
        *("–" if spread is None else str(spread) for spread in _returns(group).values()),
    ]


def _returns(group: RunGroup) -> Returns:
    return {
        **_final_and_best(group, "episode_return_mean", "return"),
        **_final_and_best(group, "evaluation/episode_return_mean", "evaluation"),
    }


def _final_and_best(group: RunGroup, metric: str, name: str) -> Returns:
    curves = group.curves(metric)
    if curves is None:
        return {f"final_{name}": None, f"best_{name}": None}
    return {
        f"final_{name}": Spread.of([float(curve.values[-1]) for curve in curves]),
        f"best_{name}": Spread.of([float(curve.values.max()) for curve in curves]),
    }


def _markdown(groups: Sequence[RunGroup]) -> str:
    lines = [
        _line(HEADINGS),
        _line(["---"] * 3 + ["---:"] * (len(HEADINGS) - 3)),
        *(_line([cell.replace("|", r"\|") for cell in table_cells(group)]) for group in groups),
        "",
        *(f"- {g.label}: {', '.join(f'`{run.path.name}`' for run in g.runs)}" for g in groups),
    ]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
