"""Running statistics that rollout workers gather and the learner merges: RLlib filters.

Each worker normalises with the merged statistics plus what it has seen since; after an
iteration the learner merges the workers' parts and hands the sum back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from ray.rllib.utils.filter import Filter

from rl_service.rollout.normalization import (
    OBSERVATION_CLIP,
    ObservationNormalizer,
    RunningMeanStd,
    normalise,
)

OBSERVATIONS = "default_policy"
"""Key of the observation filter in `RolloutWorker.filters`: RLlib keys them by policy."""
RETURNS = "returns"
"""Key of the return filter in `RolloutWorker.filters`."""


class RunningFilter(Filter):  # type: ignore[misc]
    """Running mean and deviation with the part that is not merged yet (`buffer`)."""

    is_concurrent = False

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.stats = RunningMeanStd(shape)
        self.buffer = RunningMeanStd(shape)

    def update(self, batch: npt.NDArray[Any]) -> None:
        """Adds a batch (B, *shape) to the statistics."""
        self.stats.update(batch)
        self.buffer.update(batch)

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
        """Scales the rewards (B,) that these envs have paid in one step; by default all."""
        discounted = self.discounted[envs] * self.gamma + rewards
        self.discounted[envs] = discounted
        self.filter.update(discounted)
        scaled = np.clip(rewards / self.filter.stats.std, -10.0, 10.0)
        return scaled.astype(np.float32)

    def forget(self, envs: Any) -> None:
        """New episodes begin in these envs."""
        self.discounted[envs] = 0.0
