"""What a net needs to know of an environment's spaces, and the map from policy to env actions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # a policy that acts needs no environments
    import gymnasium as gym

FloatArray = npt.NDArray[np.float32]

ACTION_MASK = "action_mask"
"""Key of an action mask, in the info or in a Dict observation."""
_NO_BOUND = 1e30
"""Bounds this wide (some environments use the largest float) are none."""


@dataclass(frozen=True)
class ActionSpec:
    """Action space as the nets see it.

    A Gaussian policy acts in normalised units: -1 and 1 are the bounds of the space, so one
    standard deviation means the same in every environment. Actions outside are clipped on the
    way to the environment only; the log-probability is that of the unclipped action.
    """

    kind: Literal["discrete", "multi_discrete", "box"]
    size: int
    """A: number of actions (discrete), or of numbers in an action (others, flattened)."""
    start: int = 0
    shape: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    """(A,) the least number of each component, of a box or of multi_discrete."""
    high: tuple[float, ...] = ()
    """(A,) the largest number of each component of a box."""
    dtype: str = "float32"
    """Number type of env actions that are arrays."""
    sizes: tuple[int, ...] = ()
    """(A,) choices of each component of a multi_discrete action, which are drawn apart."""

    @classmethod
    def from_space(cls, space: gym.Space[Any]) -> ActionSpec:
        """Reads an environment's action space.

        Raises:
            TypeError: if the space is none of Discrete, MultiDiscrete, MultiBinary, and a Box of
                float32 or float64.
        """
        import gymnasium as gym

        if isinstance(space, gym.spaces.Discrete):
            return cls("discrete", int(space.n), start=int(space.start))
        if isinstance(space, gym.spaces.MultiBinary | gym.spaces.MultiDiscrete):
            if isinstance(space, gym.spaces.MultiBinary):
                sizes, low = (2,) * math.prod(space.shape), (0,) * math.prod(space.shape)
            else:
                sizes, low = (tuple(a.reshape(-1).tolist()) for a in (space.nvec, space.start))
            dtype = str(space.dtype)
            return cls("multi_discrete", len(sizes), 0, space.shape, low, (), dtype, sizes)
        if isinstance(space, gym.spaces.Box) and space.dtype in (np.float32, np.float64):
            low, high = (tuple(b.reshape(-1).tolist()) for b in (space.low, space.high))
            return cls("box", len(low), 0, space.shape, low, high, str(space.dtype))
        raise TypeError(
            f"action space {space} is not supported; use Discrete, MultiDiscrete, MultiBinary, or "
            f"a Box of float32 or float64"
        )

    @property
    def is_categorical(self) -> bool:
        """Whether `dist_inputs` are logits, which an action mask applies to."""
        return self.kind != "box"

    @property
    def num_dist_inputs(self) -> int:
        """D, width of the actor's output: logits, or means beside log standard deviations."""
        if self.kind == "multi_discrete":
            return sum(self.sizes)
        return self.size if self.kind == "discrete" else 2 * self.size

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one action in the policy's units: () or (A,)."""
        return () if self.kind == "discrete" else (self.size,)

    @property
    def row_dtype(self) -> type[np.int64] | type[np.float32]:
        """Number type of actions in the policy's units."""
        return np.int64 if self.is_categorical else np.float32

    @property
    def first_logits(self) -> Sequence[int]:
        """Where the logits of each choice begin."""
        return list(accumulate(self.sizes[:-1], initial=0))

    def numbers(self, actions: npt.NDArray[Any]) -> FloatArray:
        """What a net reads of actions (..., *row_shape): 1 of n for each choice, or a copy."""
        if self.kind == "box":
            return np.array(actions, np.float32)
        if self.kind == "discrete":
            return np.eye(self.size, dtype=np.float32)[actions]  # type: ignore[no-any-return]
        parts = [np.eye(n, dtype=np.float32)[actions[..., i]] for i, n in enumerate(self.sizes)]
        return np.concatenate(parts, axis=-1)

    @property
    def num_numbers(self) -> int:
        """Entries of a row of `numbers`."""
        return self.size if self.kind == "box" else self.num_dist_inputs

    def likeliest(self, logits: FloatArray) -> npt.NDArray[Any]:
        """The action (B, *row_shape) of the largest logits (B, D) of each choice."""
        if self.kind == "discrete":
            chosen: npt.NDArray[Any] = logits.argmax(axis=1)
            return chosen
        parts = np.split(logits, self.first_logits[1:], axis=1)
        return np.stack([part.argmax(axis=1) for part in parts], axis=1)

    def read_mask(self, mask: Any) -> npt.NDArray[np.bool_]:
        """(D,) whether each logit's action is allowed, from an environment's action mask.

        Args:
            mask: one entry for each logit; or a sequence of them, one for each component.

        Raises:
            ValueError: if it has another shape or leaves a component without any choice.
        """
        if not self.is_categorical:
            raise ValueError("an action mask is for discrete actions, and these are a Box")
        row = flat_mask(mask).astype(np.bool_)
        if len(row) != self.num_dist_inputs:
            raise ValueError(
                f"the action mask has {len(row)} entries, and the actions need "
                f"{self.num_dist_inputs}, one for each choice"
            )
        if not all(part.any() for part in np.split(row, self.first_logits[1:])):
            raise ValueError("the action mask allows no action")
        return row

    def mask_of(self, info: Mapping[str, Any]) -> npt.NDArray[np.bool_] | None:
        """(D,) what an environment's info allows, as `read_mask` gives it; None: all.

        Raises:
            ValueError: as `read_mask`.
        """
        mask = info.get(ACTION_MASK)
        return None if mask is None else self.read_mask(mask)

    def to_env(self, actions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Maps policy actions to env actions.

        Args:
            actions: (B,) or (B, A) integers from 0, or (B, A) in normalised units.

        Returns:
            (B,) integers from `start`, or (B, *shape) of the space's number type within its bounds.
        """
        if self.kind == "discrete":
            return actions + self.start if self.start else actions
        if self.kind == "multi_discrete":
            chosen = actions + np.asarray(self.low, np.int64)
            return chosen.astype(self.dtype).reshape(len(actions), *self.shape)
        scale, offset, low, high = self._affine
        env_actions = (actions * scale + offset).astype(self.dtype, copy=False)
        clipped: npt.NDArray[Any] = np.clip(env_actions, low, high)
        return clipped.reshape(len(actions), *self.shape)

    def from_env(self, env_actions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Maps env actions within the bounds to the policy actions that become them.

        Args:
            env_actions: (B,) integers from `start`, or (B, *shape).

        Returns:
            (B,) or (B, A) integers from 0, or (B, A) in normalised units; 0 where the bounds leave
            no choice.
        """
        if self.kind == "discrete":
            return env_actions - self.start
        if self.kind == "multi_discrete":
            flat = env_actions.reshape(len(env_actions), self.size).astype(np.int64)
            return flat - np.asarray(self.low, np.int64)
        scale, offset, _, _ = self._affine
        flat = env_actions.reshape(len(env_actions), self.size) - offset
        actions = np.zeros(flat.shape, np.float32)
        np.divide(flat, scale, out=actions, where=scale != 0, casting="same_kind")
        return actions

    @property
    def middle(self) -> npt.NDArray[Any]:
        """(1, ...) the env action that the policy action 0 becomes."""
        return self.to_env(np.zeros((1, *self.row_shape), self.row_dtype))

    @property
    def start_means(self) -> tuple[float, ...]:
        """(A,) where a Gaussian begins, in normalised units: 1 from a bound that has no opposite.

        At 0, a mean could lie on that bound, or beyond it, and most samples would be clipped.
        """
        bounds = zip(self.low, self.high, strict=True)
        return tuple(_start_mean(low, high) for low, high in bounds)

    @cached_property
    def _affine(self) -> tuple[npt.NDArray[Any], ...]:
        """Scale and offset from normalised to env units, and the bounds, (A,) each."""
        low, high = np.asarray(self.low, self.dtype), np.asarray(self.high, self.dtype)
        bounded = (low > -_NO_BOUND) & (high < _NO_BOUND)
        with np.errstate(invalid="ignore", over="ignore"):  # inf - inf, where no bound applies
            scale = np.where(bounded, 0.5 * (high - low), 1.0).astype(self.dtype)
            offset = np.where(bounded, 0.5 * (high + low), 0.0).astype(self.dtype)
        return scale, offset, low, high


def flat_mask(mask: Any) -> npt.NDArray[Any]:
    """(D,) an action mask: an array, or a sequence of one for each component."""
    parts = mask if isinstance(mask, tuple | list) else [mask]
    return np.concatenate([np.ravel(part) for part in parts]) if parts else np.zeros(0, np.bool_)


def _start_mean(low: float, high: float) -> float:
    has_low, has_high = low > -_NO_BOUND, high < _NO_BOUND
    if has_low == has_high:
        return 0.0
    return max(0.0, low + 1.0) if has_low else min(0.0, high - 1.0)


def observation_size(space: gym.Space[Any]) -> int:
    """Number of entries of a flattened Box observation.

    Raises:
        TypeError: if the nets cannot read the space; the message says what to do.
    """
    import gymnasium as gym

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
