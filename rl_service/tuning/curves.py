"""Metrics of a run over its env steps, and those of several runs as a mean and a band."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_service.common.errors import CheckpointError
from rl_service.common.metrics import ENV_STEPS, NUMERIC

Floats = NDArray[np.float64]


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


def _number(row: Mapping[str, Any], key: str, where: str) -> float | None:
    value = row.get(key)
    if value is None:
        return None
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise _damaged(where, f"{key} is {value!r:.40}")
    return float(value)


def _damaged(where: str, reason: str) -> CheckpointError:
    return CheckpointError(f"{where} is damaged: {reason}; remove that line to go on")
