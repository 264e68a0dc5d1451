"""Compares runs: reads them, draws one figure a metric, writes the table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rl_service.config.text import nearest
from rl_service.errors import OutputError, SettingsError
from rl_service.files import output_errors
from rl_service.metrics import NUMERIC
from rl_service.policies.replace import replacing_folder
from rl_service.reporting.curves import Band
from rl_service.reporting.figures import draw, figure_name
from rl_service.reporting.groups import Group, load_groups
from rl_service.reporting.results import RESULTS_CSV, RESULTS_MD, GroupResult, write_results

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
        metrics: keys of `rl_service.metrics.METRICS`; empty: those of the usual ones that the
            runs have.

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
