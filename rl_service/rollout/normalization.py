"""Running mean and deviation, and the observation normaliser made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

EPSILON = 1e-8
OBSERVATION_CLIP = 10.0
"""Normalised observations are clipped to ±10 deviations, as in Stable-Baselines3."""

Float64Array = npt.NDArray[np.float64]


class RunningMeanStd:
    """Mean and variance of a stream, in batches (Chan, Golub, LeVeque 1979).

    Args:
        shape: of one entry; () for scalars.
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.mean: Float64Array = np.zeros(shape, np.float64)
        self.sum_squares: Float64Array = np.zeros(shape, np.float64)
        self.count = 0.0

    @property
    def variance(self) -> Float64Array:
        """Population variance; 1 before the first entry."""
        if self.count == 0:
            return np.ones_like(self.mean)
        return self.sum_squares / self.count

    @property
    def std(self) -> Float64Array:
        return np.sqrt(self.variance + EPSILON)

    def update(self, batch: npt.NDArray[Any]) -> None:
        """Adds entries.

        Args:
            batch: (B, *shape).
        """
        batch_mean = batch.mean(axis=0, dtype=np.float64)
        deviations = batch - batch_mean
        self._merge(batch_mean, np.square(deviations).sum(axis=0), float(len(batch)))

    def merge(self, other: RunningMeanStd) -> None:
        """Adds all that `other` has seen."""
        self._merge(other.mean, other.sum_squares, other.count)

    def _merge(self, mean: Any, sum_squares: Any, count: float) -> None:
        if count == 0:
            return
        total = self.count + count
        delta = mean - self.mean
        self.mean = self.mean + delta * (count / total)
        self.sum_squares = (
            self.sum_squares + sum_squares + np.square(delta) * (self.count * count / total)
        )
        self.count = total

    def state(self) -> dict[str, Any]:
        """Arrays and a count, for a checkpoint."""
        return {"mean": self.mean, "sum_squares": self.sum_squares, "count": self.count}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> RunningMeanStd:
        stats = cls(np.shape(state["mean"]))
        stats.mean = np.array(state["mean"], np.float64)
        stats.sum_squares = np.array(state["sum_squares"], np.float64)
        stats.count = float(state["count"])
        return stats

    def copy(self) -> RunningMeanStd:
        return RunningMeanStd.from_state(self.state())


@dataclass(frozen=True)
class ObservationNormalizer:
    """Fixed statistics applied to observations: `clip((obs - mean) / std, ±clip)`."""

    mean: Float64Array
    """(O,)"""
    std: Float64Array
    """(O,)"""
    clip: float = OBSERVATION_CLIP

    @classmethod
    def from_stats(cls, stats: RunningMeanStd) -> ObservationNormalizer:
        return cls(stats.mean.copy(), stats.std.copy())

    def __call__(self, obs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Normalises observations (..., O)."""
        return normalise(obs, self.mean, self.std, self.clip)


def normalise(
    obs: npt.NDArray[Any], mean: Float64Array, std: Float64Array, clip: float
) -> npt.NDArray[np.float32]:
    """`clip((obs - mean) / std, ±clip)`: the one formula of training, evaluation and serving."""
    return np.clip((obs - mean) / std, -clip, clip).astype(np.float32)
