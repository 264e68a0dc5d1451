"""What a net needs to know of an environment's spaces, and the map from policy to env actions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

_NO_BOUND = 1e30
"""Bounds this wide (some environments use the largest float) are none."""


@dataclass(frozen=True)
class ActionSpec:
    """Action space as the nets see it.

    A Gaussian policy acts in normalised units: -1 and 1 are the bounds of the space, so one
    standard deviation means the same in every environment. Actions outside are clipped on the
    way to the environment only; the log-probability is that of the unclipped action.
    """

    kind: Literal["discrete", "box"]
    size: int
    """Number of actions (discrete) or of action dimensions (box, flattened)."""
    start: int = 0
    shape: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @classmethod
    def from_space(cls, space: gym.Space[Any]) -> ActionSpec:
        """Reads an environment's action space.

        Raises:
            TypeError: if the space is neither Discrete nor a Box of floats.
        """
        if isinstance(space, gym.spaces.Discrete):
            return cls("discrete", int(space.n), start=int(space.start))
        if isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating):
            low, high = space.low.reshape(-1).tolist(), space.high.reshape(-1).tolist()
            return cls("box", len(low), shape=space.shape, low=tuple(low), high=tuple(high))
        raise TypeError(f"action space {space} is not supported; use Discrete or a Box of floats")

    @property
    def num_dist_inputs(self) -> int:
        """Width of the actor's output: logits, or means beside log standard deviations."""
        return self.size if self.kind == "discrete" else 2 * self.size

    def to_env(self, actions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Maps policy actions to env actions.

        Args:
            actions: (B,) integers from 0, or (B, A) in normalised units.

        Returns:
            (B,) integers from `start`, or (B, *shape) within the bounds.
        """
        if self.kind == "discrete":
            return actions + self.start if self.start else actions
        scale, offset, low, high = self._affine
        clipped: npt.NDArray[Any] = np.clip(actions * scale + offset, low, high)
        return clipped.reshape(len(actions), *self.shape)

    @cached_property
    def _affine(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Scale and offset from normalised to env units, and the bounds, (A,) each."""
        low, high = np.asarray(self.low, np.float32), np.asarray(self.high, np.float32)
        bounded = (low > -_NO_BOUND) & (high < _NO_BOUND)
        with np.errstate(invalid="ignore", over="ignore"):  # inf - inf, where no bound applies
            scale = np.where(bounded, 0.5 * (high - low), 1.0).astype(np.float32)
            offset = np.where(bounded, 0.5 * (high + low), 0.0).astype(np.float32)
        return scale, offset, low, high


def observation_size(space: gym.Space[Any]) -> int:
    """Number of entries of a flattened Box observation.

    Raises:
        TypeError: if the nets cannot read the space; the message says what to do.
    """
    if not isinstance(space, gym.spaces.Box):
        raise TypeError(
            f"observation space {space} is not supported; these models read a Box of numbers: "
            f"flatten it in a wrapper (gymnasium.wrappers.FlattenObservation)"
        )
    if space.dtype == np.uint8 and len(space.shape) >= 2:
        raise TypeError(
            f"observation space {space} is an image; these models read vectors: "
            f"use an environment with vector observations, or a wrapper that extracts features"
        )
    return int(np.prod(space.shape, dtype=np.int64)) if space.shape else 1
