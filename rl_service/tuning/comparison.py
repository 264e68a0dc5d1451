"""Compares runs: reads them, draws one figure a metric, writes the table."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure  # without pyplot, which would look for a screen
from matplotlib.lines import Line2D

from rl_service.common.errors import OutputError, SettingsError
from rl_service.common.files import as_folder_name, output_errors, replacing_folder
from rl_service.common.metrics import METRICS, NUMERIC
from rl_service.common.text import nearest
from rl_service.tuning.curves import Band
from rl_service.tuning.groups import Group, load_groups
from rl_service.tuning.results import RESULTS_CSV, RESULTS_MD, GroupResult, write_results

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


class Comparison(NamedTuple):
    folder: Path
    """Absolute."""
    results: list[GroupResult]
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
    results = [GroupResult.of(group) for group in groups]
    figures, notes = [], []
    with replacing_folder(folder) as staged:
        for metric in chosen:
            bands, left_out = _bands(metric, groups)
            notes += left_out
            if bands:
                draw(staged / figure_name(metric), metric, bands)
                figures.append(folder / figure_name(metric))
        write_results(staged, results)
    return Comparison(folder, results, figures, notes)


def _check_metrics(metrics: Sequence[str]) -> None:
    unknown = [metric for metric in metrics if metric not in NUMERIC]
    if unknown:
        raise SettingsError([_unknown(metric) for metric in unknown])


def _unknown(metric: str) -> str:
    near = nearest(metric, NUMERIC)
    hint = f"did you mean {near}?" if near else f"usual ones: {', '.join(DEFAULT_METRICS)}"
    return f"--metric {metric} is unknown; {hint}"


def _check_folder(folder: Path) -> None:
    """Refuses a folder in which something else than an earlier comparison would be lost."""
    if folder == Path.cwd():  # it would be another folder afterwards, and its shell in none
        raise OutputError(f"{folder} is the current folder; choose one in it (-o)")
    with output_errors(folder):
        if not folder.exists():
            return
        found = sorted(path.name for path in folder.iterdir())
    ours = {RESULTS_CSV, RESULTS_MD, *map(figure_name, NUMERIC)}
    foreign = [name for name in found if name not in ours]
    if foreign:
        raise OutputError(
            f"{folder} holds {foreign[0]}, which no comparison wrote and which would be lost; "
            f"choose another output folder (-o)"
        )


def _chosen(metrics: Sequence[str], groups: Sequence[Group]) -> list[str]:
    """The metrics to draw; each has values in some run."""
    there = {metric for group in groups for run in group.runs for metric in run.curves}
    missing = [metric for metric in metrics if metric not in there]
    if missing:
        raise SettingsError(
            f"--metric {missing[0]}: no run has values of it; they have {', '.join(sorted(there))}"
        )
    return list(dict.fromkeys(metrics)) or [m for m in DEFAULT_METRICS if m in there]


def _bands(metric: str, groups: Sequence[Group]) -> tuple[dict[str, Band], list[str]]:
    """The groups that can be drawn, by label, and a note for each that cannot."""
    found = {group.label: group.band(metric) for group in groups}
    notes = [
        f"{figure_name(metric)} leaves out '{group.label}': {_reason(group, metric)}"
        for group in groups
        if found[group.label] is None
    ]
    return {label: band for label, band in found.items() if band is not None}, notes


def _reason(group: Group, metric: str) -> str:
    if group.curves(metric) is not None:
        return "its runs share no env steps"
    number = sum(metric not in run.curves for run in group.runs)
    return f"{number} of its {len(group.runs)} runs have no values"


def figure_name(metric: str) -> str:
    """File of a metric's figure."""
    return f"{as_folder_name(metric)}.png"


def draw(path: Path, metric: str, bands: Mapping[str, Band]) -> None:
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
