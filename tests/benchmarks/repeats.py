"""Interleaved repeats: A, B, A, B, … so that what else the machine does meets all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

Samples = dict[str, list[Any]]
"""By candidate, one measurement a repeat."""


def interleaved(
    candidates: Mapping[str, Callable[[], Any]], repeats: int, *, warmups: int = 0
) -> Samples:
    """Measures every candidate once per repeat, in turn.

    Args:
        candidates: by name, a function that measures once.
        repeats: kept measurements of each.
        warmups: measurements of each that are thrown away first.
    """
    for _ in range(warmups):
        for measure in candidates.values():
            measure()
    samples: Samples = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, measure in candidates.items():
            samples[name].append(measure())
    return samples


class Ratio(NamedTuple):
    """How often one quantity holds another, over the repeats."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Median, least and greatest of the ratios within each repeat."""
    ratios = [n / d for n, d in zip(numerators, denominators, strict=True)]
    return Ratio(median(ratios), min(ratios), max(ratios))


def best(samples: Mapping[str, Sequence[float]]) -> str:
    """Name of the candidate with the highest median."""
    return max(samples, key=lambda name: median(samples[name]))
