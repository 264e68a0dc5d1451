"""Running statistics that normalise observations and rewards; workers gather, the learner merges.

Each worker normalises with the merged statistics plus what it has seen since; after an
iteration the learner merges the workers' parts and hands the sum back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

OBSERVATIONS = "default_policy"
"""Key of the observation filter in `RolloutWorker.filters`: RLlib keys them by policy."""
RETURNS = "returns"
"""Key of the return filter in `RolloutWorker.filters`."""


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
        self.add(*moments(batch))

    def merge(self, other: RunningMeanStd) -> None:
        """Adds all that `other` has seen."""
        self.add(other.mean, other.sum_squares, other.count)

    def add(self, mean: Any, sum_squares: Any, count: float) -> None:
        """Adds entries of which the moments are known."""
        if count == 0:
            return
        total = self.count + count
        delta = mean - self.mean
        self.mean = self.mean + delta * (count / total)
        self.sum_squares = (
            self.sum_squares + sum_squares + delta * delta * (self.count * count / total)
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


def moments(batch: npt.NDArray[Any]) -> tuple[Any, Any, float]:
    """Mean, sum of squared deviations and number of entries (B, *shape)."""
    count = len(batch)
    mean = np.add.reduce(batch, axis=0, dtype=np.float64) / count
    deviations = batch - mean
    return mean, np.add.reduce(deviations * deviations, axis=0), float(count)


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


def hide(obs: npt.NDArray[np.float32], indices: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Observations (..., O) whose entries at these indices are zero."""
    if not indices:
        return obs
    left = obs.copy()
    left[..., list(indices)] = 0.0
    return left


def normalise(
    obs: npt.NDArray[Any], mean: Float64Array, std: Float64Array, clip: float
) -> npt.NDArray[np.float32]:
    """`clip((obs - mean) / std, ±clip)`: the one formula of training, evaluation and serving."""
    return np.clip((obs - mean) / std, -clip, clip).astype(np.float32)


class RunningFilter:
    """Running mean and deviation, and the part that is not merged yet (`buffer`).

    It has the methods of RLlib's `Filter` that `RolloutWorker` calls.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.stats = RunningMeanStd(shape)
        self.buffer = RunningMeanStd(shape)

    def update(self, batch: npt.NDArray[Any]) -> None:
        """Adds a batch (B, *shape) to the statistics."""
        seen = moments(batch)
        self.stats.add(*seen)
        self.buffer.add(*seen)

    def __call__(self, obs: npt.NDArray[Any], update: bool = True) -> npt.NDArray[np.float32]:
        """Normalises observations (B, O), by default after adding them to the statistics."""
        if update:
            self.update(obs)
        return normalise(obs, self.stats.mean, self.stats.std, OBSERVATION_CLIP)

    def apply_changes(self, other: RunningFilter, with_buffer: bool = False) -> None:
        """Merges what `other` has seen since its last flush."""
        self.stats.merge(other.buffer)
        if with_buffer:
            self.buffer = other.buffer.copy()

    def copy(self) -> RunningFilter:
        other = RunningFilter(self.stats.mean.shape)
        other.sync(self)
        return other

    def sync(self, other: RunningFilter) -> None:
        self.stats, self.buffer = other.stats.copy(), other.buffer.copy()

    def reset_buffer(self) -> None:
        self.buffer = RunningMeanStd(self.stats.mean.shape)

    def as_serializable(self) -> RunningFilter:
        return self.copy()

    def normalizer(self) -> ObservationNormalizer:
        """The statistics as they stand now, for evaluation and bundles."""
        return ObservationNormalizer.from_stats(self.stats)


class ReturnScaler:
    """Divides rewards by the running deviation of the discounted return.

    The return is that of each env since its last reset, as in Stable-Baselines3's
    `VecNormalize`; scaled rewards are clipped to ±10.

    Args:
        returns: statistics shared with the other workers.
        num_envs: E.
        gamma: discount.
    """

    def __init__(self, returns: RunningFilter, num_envs: int, gamma: float) -> None:
        self.filter = returns
        self.gamma = gamma
        self.discounted = np.zeros(num_envs, np.float64)

    def __call__(
        self, rewards: npt.NDArray[np.float32], envs: Any = slice(None)
    ) -> npt.NDArray[np.float32]:
        """Scales the rewards (B,) of one step of these envs, by default of all."""
        discounted = self.discounted[envs] * self.gamma + rewards
        self.discounted[envs] = discounted
        self.filter.update(discounted)
        scaled = np.clip(rewards / self.filter.stats.std, -10.0, 10.0)
        return scaled.astype(np.float32)

    def forget(self, envs: Any) -> None:
        """Forgets the returns of these envs, in which new episodes start."""
        self.discounted[envs] = 0.0
