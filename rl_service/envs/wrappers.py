"""The one wrapper that stands between any environment and the nets."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from custom_models.spaces import FloatArray, observation_size


class FlatObservation(gym.ObservationWrapper[FloatArray, Any, npt.NDArray[Any]]):
    """Flattens Box observations of any shape and number type to one float32 vector (O,).

    `raw_space` is the space before, of its own shape and in float32.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        """Wraps an environment.

        Raises:
            TypeError: if the observation space is none that the nets can read.
        """
        super().__init__(env)
        space = env.observation_space
        size = observation_size(space)
        assert isinstance(space, gym.spaces.Box)  # observation_size has refused all others
        with np.errstate(over="ignore"):  # float64's largest number stands for "no bound"
            low = np.broadcast_to(space.low, space.shape).astype(np.float32)
            high = np.broadcast_to(space.high, space.shape).astype(np.float32)
        self.raw_space = gym.spaces.Box(low, high, dtype=np.float32)
        self.observation_space = gym.spaces.Box(
            low.reshape(size), high.reshape(size), dtype=np.float32
        )

    def observation(self, observation: npt.NDArray[Any]) -> FloatArray:
        """Returns the observation as float32 (O,)."""
        return np.asarray(observation, dtype=np.float32).reshape(-1)


class FreshWorld(gym.Wrapper[Any, Any, Any, Any]):
    """Gives `BipedalWalker` a new physics world for every episode.

    It keeps one for life, so that what a seed leads to depends on all episodes before it; the
    other Box2D environments make a new one in each reset.
    """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        import Box2D  # type: ignore[import-untyped]  # only this environment needs it

        walker: Any = self.unwrapped
        walker._destroy()
        walker.world = Box2D.b2World()
        return self.env.reset(seed=seed, options=options)


def is_flat(space: gym.Space[Any]) -> bool:
    """Whether observations of a space are float32 vectors already."""
    return isinstance(space, gym.spaces.Box) and space.dtype == np.float32 and len(space.shape) == 1
