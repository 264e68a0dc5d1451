"""Episodes that failed in their environment (an exception, NaN, infinity), and texts about them."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from custom_models.text import one_line


class FailedEpisode(NamedTuple):
    """An episode that its environment could not finish, and what reproduces it."""

    worker_index: int
    env_index: int
    """Index of the env among the worker's."""
    seed: int
    """What `env.reset(seed=...)` was given."""
    step: int
    """Env steps since that reset, the failing one included; 0: the reset itself failed."""
    error: str
    """One line."""

    def __str__(self) -> str:
        return (
            f"rollout worker {self.worker_index}, env {self.env_index}, "
            f"{failure_text(self.seed, self.step, self.error)}"
        )


def failure_text(seed: int, step: int, error: str) -> str:
    """Where in an episode its environment failed, and how."""
    return f"reset(seed={seed}), step {step}: {error}"


def exception_text(error: Exception) -> str:
    """An exception's type and text on one line."""
    return f"{type(error).__name__}: {one_line(error)}".removesuffix(": ")


def not_finite(obs: npt.NDArray[np.floating], reward: float = 0.0) -> str | None:
    """The first NaN or infinity in an observation (O,) or a reward, in words; or None."""
    broken = np.flatnonzero(~np.isfinite(obs))
    if len(broken):
        value = obs[broken[0]]
        shown = "NaN" if np.isnan(value) else str(value)
        return f"observation has {shown} at index {broken[0]}"
    return None if np.isfinite(reward) else f"reward is {reward}"


def outside_space(obs: Any, space: gym.spaces.Box) -> str | None:
    """Why an observation does not belong to its space; None if it does.

    Its number type may be another, and bounds are kept up to rounding.
    """
    array = np.asarray(obs, np.float32)
    if array.shape != space.shape:
        return f"observation has the shape {array.shape} instead of {space.shape}"
    if error := not_finite(array):
        return error
    slack = 1e-5 * np.maximum(1.0, np.abs(array))
    outside = np.flatnonzero((array < space.low - slack) | (array > space.high + slack))
    if not len(outside):
        return None
    i = outside[0]
    return (
        f"observation has {array[i]:g} at index {i}, and its observation_space is from "
        f"{space.low[i]:g} to {space.high[i]:g} there"
    )


def not_a_number(reward: Any) -> str | None:
    """Why something cannot be a reward; None if it can."""
    value = np.asarray(reward)
    if value.ndim or value.dtype.kind not in "fiub":
        return f"reward is {one_line(repr(reward))}, not a number"
    return None if np.isfinite(value) else f"reward is {reward}"


def too_many_failures(num_failures: int, limit: int, last: FailedEpisode) -> str:
    """Why a run ends after too many failed episodes.

    Args:
        num_failures: episodes that failed, more than `limit`.
        limit: `env.max_failed_episodes`.
        last: the last of these episodes.
    """
    failed = "1 episode" if num_failures == 1 else f"{num_failures} episodes"
    return (
        f"{failed} failed in {'its' if num_failures == 1 else 'their'} environment, more than "
        f"env.max_failed_episodes={limit}; the last: {last}; fix the environment or raise the "
        f"limit, then continue from the last checkpoint with --resume"
    )
