"""Numbers as the console shows them."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_SPARKS = "▁▂▃▄▅▆▇█"


def figure(value: float | None, digits: int = 0) -> str:
    """`12345.6` becomes `12,346`; unknown values become a dash."""
    return "–" if value is None else f"{value:,.{digits}f}"


def speed(steps_per_s: float | None) -> str:
    """`1234.5` becomes `1,235`; of slow environments two digits count: `0.42`."""
    if steps_per_s is None or steps_per_s >= 10.0:
        return figure(steps_per_s)
    return f"{steps_per_s:.2g}"


def mean_std(mean: float | None, std: float | None) -> str:
    """`123.4 ± 5.6`."""
    return figure(mean, 1) if std is None else f"{figure(mean, 1)} ± {figure(std, 1)}"


def evaluation_return(row: Mapping[str, Any]) -> str:
    """Mean and deviation of a row's evaluation."""
    prefix = "evaluation/episode_return"
    return mean_std(row.get(f"{prefix}_mean"), row.get(f"{prefix}_std"))


def duration(seconds: float | None) -> str:
    """`65` becomes `1:05`, `3700` becomes `1:01:40`."""
    if seconds is None:
        return "–"
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest_s:02}" if hours else f"{minutes}:{rest_s:02}"


def sparkline(values: Sequence[float], width: int) -> str:
    """A curve of at most `width` characters; each stands for the mean of its share of values."""
    if not values:
        return ""
    num_columns = min(width, len(values))
    edges = [round(i * len(values) / num_columns) for i in range(num_columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, span = min(means), (max(means) - min(means)) or 1.0
    return "".join(_SPARKS[int((mean - low) / span * (len(_SPARKS) - 1))] for mean in means)


def short_path(path: str | Path) -> str:
    """The path as one would type it here: relative if it lies below, quoted if need be."""
    path = Path(path)
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
