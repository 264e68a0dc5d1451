"""Runs to compare: the curve of each metric, and the groups of runs that become one band."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from custom_models.text import one_line
from rl_service.common.errors import CheckpointError, SettingsError
from rl_service.common.metrics import ENV_STEPS, NUMERIC
from rl_service.config.settings import Settings
from rl_service.training.run import Run
from rl_service.tuning.storage import PLAN_FILE

Floats = NDArray[np.float64]
RunKey = TypeVar("RunKey", bound=Hashable)


@dataclass(frozen=True)
class Curve:
    """One metric of one run, at the iterations that have a value of it."""

    env_steps: Floats  # (N,), increasing
    values: Floats  # (N,)


@dataclass(frozen=True)
class Band:
    """One metric of several runs at common env steps."""

    env_steps: Floats  # (N,), increasing
    mean: Floats  # (N,)
    low: Floats  # (N,), the lowest run
    high: Floats  # (N,), the highest run


def curves_of(rows: Sequence[Mapping[str, Any]], source: str) -> dict[str, Curve]:
    """The curve of each metric that has a value in some row.

    Args:
        rows: of `progress.jsonl`, oldest first.
        source: where they come from, for the message.

    Raises:
        CheckpointError: naming a row whose env steps do not grow or whose value is no number.
    """
    points: dict[str, list[tuple[float, float]]] = {}
    before = -1.0
    for number, row in enumerate(rows, start=1):
        steps = _number(row, ENV_STEPS, f"{source} line {number}")
        if steps is None or steps <= before:
            raise _damaged(f"{source} line {number}", f"{ENV_STEPS} is missing or does not grow")
        before = steps
        for metric in row.keys() & NUMERIC:
            value = _number(row, metric, f"{source} line {number}")
            if value is not None:
                points.setdefault(metric, []).append((steps, value))
    return {metric: Curve(*np.array(found).T) for metric, found in points.items()}


def band_of(curves: Sequence[Curve]) -> Band | None:
    """Mean, lowest and highest value at the env steps that all curves cover.

    Curves are linear between their points and are not extended: a mean whose runs come and go
    would jump where one does.

    Returns:
        The band at every point of any curve within that range; None if there is no such range.
    """
    first = max(curve.env_steps[0] for curve in curves)
    last = min(curve.env_steps[-1] for curve in curves)
    if first > last:
        return None
    steps = np.unique(np.concatenate([curve.env_steps for curve in curves]))  # (M,)
    steps = steps[(first <= steps) & (steps <= last)]  # (N,)
    values = np.stack([np.interp(steps, c.env_steps, c.values) for c in curves])  # (runs, N)
    return Band(steps, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


@dataclass(frozen=True)
class RunCurves:
    """A run and its metrics."""

    path: Path
    settings: Settings
    curves: dict[str, Curve]


@dataclass(frozen=True)
class RunGroup:
    """Runs that are one line in the figures and one row in the table."""

    label: str
    runs: list[RunCurves]

    @property
    def seeds(self) -> list[int]:
        """Of the runs."""
        return [run.settings.seed for run in self.runs]

    @property
    def env_steps(self) -> list[int]:
        """Steps of each run so far."""
        return [int(run.curves[ENV_STEPS].values[-1]) for run in self.runs]

    def curves(self, metric: str) -> list[Curve] | None:
        """A metric's curve of each run; None if one has no values of it."""
        found = [run.curves.get(metric) for run in self.runs]
        whole = [curve for curve in found if curve is not None]
        return whole if len(whole) == len(found) else None

    def band(self, metric: str) -> Band | None:
        """A metric of all runs; None if one has no values of it or they share no env steps."""
        curves = self.curves(metric)
        return None if curves is None else band_of(curves)


def load_groups(references: Sequence[str]) -> list[RunGroup]:
    """Reads runs and puts those of one label together, in the order of their first.

    Args:
        references: each a run's folder, its id under `./runs`, or `LABEL=` and one of them.

    Raises:
        CheckpointError: if there is no such run, or it is damaged or has no iterations yet.
        SettingsError: if a label is empty or holds a run twice.
    """
    named = [_split(reference) for reference in references]
    runs = [_read(run) for _, run in named]
    unnamed = [run for run, (label, _) in zip(runs, named, strict=True) if not label]
    plain = plain_labels({run.path: run.settings for run in unnamed})
    groups: dict[str, RunGroup] = {}
    for (given, _), run in zip(named, runs, strict=True):
        label = given or plain[run.path]
        group = groups.setdefault(label, RunGroup(label, []))
        if any(run.path == other.path for other in group.runs):
            raise SettingsError(f"run {run.path} is given twice as '{label}'; name it once")
        group.runs.append(run)
    return list(groups.values())


def _split(reference: str) -> tuple[str, str]:
    """Label, empty if there is none, and run."""
    label, equals, run = reference.partition("=")
    if not equals or Path(reference).is_dir():
        return "", reference
    label = one_line(label)
    if not label or not run:
        raise SettingsError(f"'{reference}' lacks a label or a run; give RUN or LABEL=RUN")
    return label, run


def _read(reference: str) -> RunCurves:
    try:
        if Path(reference, PLAN_FILE).is_file():
            raise CheckpointError(
                f"{reference} is a tuning experiment, and its trials are no runs; they are "
                f"compared in its report folder"
            )
        run = Run.open(reference)
        rows = run.read_progress()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CheckpointError(
            f"run {reference:.200} cannot be read: {reason}; name a run's folder or its id"
        ) from error
    if not rows:
        raise CheckpointError(f"run {run.path} has no iterations yet; wait for one or leave it out")
    return RunCurves(run.path, run.settings, curves_of(rows, str(run.path / "progress.jsonl")))


def plain_labels(runs: Mapping[RunKey, Settings]) -> dict[RunKey, str]:
    """Labels of runs: model, algorithm, env, and settings that make a difference.

    Runs that differ in their seed only have the same label.

    Args:
        runs: settings by whatever identifies a run.

    Returns:
        Labels by the same.
    """
    by_name: dict[str, dict[RunKey, dict[str, Any]]] = {}
    for run, s in runs.items():
        name = f"{s.model.name} {s.algorithm.name} {s.env.id}"
        by_name.setdefault(name, {})[run] = _compared(s)
    return {
        run: ", ".join([name, *(f"{key}={settings[key]}" for key in _varying(alike.values()))])
        for name, alike in by_name.items()
        for run, settings in alike.items()
    }


def _compared(settings: Settings) -> dict[str, Any]:
    """Settings that make one run another than the next."""
    return {k: v for k, v in settings.by_key().items() if not k.startswith("tracking.")}


def _varying(settings: Iterable[dict[str, Any]]) -> list[str]:
    """Keys that do not have the same value everywhere."""
    first, *others = settings
    return [key for key in first if any(other[key] != first[key] for other in others)]


def _number(row: Mapping[str, Any], key: str, where: str) -> float | None:
    value = row.get(key)
    if value is None:
        return None
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise _damaged(where, f"{key} is {value!r:.40}")
    return float(value)


def _damaged(where: str, reason: str) -> CheckpointError:
    return CheckpointError(f"{where} is damaged: {reason}; remove that line to continue")
