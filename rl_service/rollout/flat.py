"""Observations of any space as flat rows of float32, and action masks in one place, the info."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from custom_models.spaces import ACTION_MASK, FloatArray

AnyEnv = gym.Env[Any, Any]

_FLATTENED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def with_masks_apart(env: AnyEnv, *, action_masks: bool) -> AnyEnv:
    """Wraps an environment so that its action masks are in the info alone.

    Args:
        env: the environment.
        action_masks: whether they are used; otherwise they are dropped.
    """
    space = env.observation_space
    if isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces:
        env = MaskedObservation(env)
    return env if action_masks else WithoutMask(env)


def flat_env(env: AnyEnv, raw: gym.Space[Any], *, flatten_images: bool) -> AnyEnv:
    """Wraps an environment so that it observes float32 vectors (O,).

    Args:
        env: the environment, its masks apart.
        raw: what it observed before.
        flatten_images: whether images become vectors, too.

    Raises:
        TypeError: if the nets cannot read the observation space; the message says what to do.
    """
    if is_flat(env.observation_space):
        return env
    return FlatObservation(env, raw, flatten_images=flatten_images)


def is_flat(space: gym.Space[Any]) -> bool:
    """Whether observations of a space are float32 vectors already."""
    return isinstance(space, spaces.Box) and space.dtype == np.float32 and len(space.shape) == 1


class FlatObservation(gym.ObservationWrapper[FloatArray, Any, Any]):
    """Flattens observations to one float32 vector (O,), as gymnasium does.

    The parts of a Dict come in the order of its keys, those of a Tuple in their own; a choice is
    1 of n. `raw_space` is the environment's own space; a Box is given in float32.

    Raises:
        TypeError: if the nets cannot read the observation space.
    """

    def __init__(self, env: AnyEnv, raw: gym.Space[Any], *, flatten_images: bool) -> None:
        super().__init__(env)
        self._space = env.observation_space
        parts = list(parts_of(self._space))
        if not parts:
            raise TypeError(f"observation space {raw} has nothing but its action mask to read")
        for part in parts:
            _check_readable(part, flatten_images)
        flat = spaces.flatten_space(self._space)
        assert isinstance(flat, spaces.Box)  # as all parts can be flattened
        self.observation_space = _in_float32(flat)
        self.raw_space = _in_float32(raw) if isinstance(raw, spaces.Box) else raw

    def observation(self, observation: Any) -> FloatArray:
        """The observation as float32 (O,)."""
        if not isinstance(self._space, spaces.Box):
            observation = spaces.flatten(self._space, observation)
        return np.asarray(observation, dtype=np.float32).reshape(-1)


def parts_of(space: gym.Space[Any]) -> Iterable[gym.Space[Any]]:
    """The spaces that a space of spaces is made of."""
    if isinstance(space, spaces.Dict):
        inner: Iterable[gym.Space[Any]] = space.spaces.values()
    elif isinstance(space, spaces.Tuple):
        inner = space.spaces
    else:
        return [space]
    return [part for each in inner for part in parts_of(each)]


def _check_readable(space: gym.Space[Any], flatten_images: bool) -> None:
    if not isinstance(space, _FLATTENED):
        raise TypeError(
            f"observation space {space} is not supported; the nets read Box, Discrete, "
            f"MultiDiscrete, MultiBinary, and Dict and Tuple of these; wrap the environment"
        )
    is_image = isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) >= 2
    if is_image and not flatten_images:
        raise TypeError(
            f"observation space {space} is an image, and the nets read vectors: use an environment "
            f"with vector observations or a wrapper that extracts features, or set "
            f"env.flatten_images=true to read each pixel as a number"
        )


def _in_float32(space: spaces.Box) -> spaces.Box:
    with np.errstate(over="ignore"):  # float64's largest number stands for "no bound"
        low = np.broadcast_to(space.low, space.shape).astype(np.float32)
        high = np.broadcast_to(space.high, space.shape).astype(np.float32)
    return spaces.Box(low, high, dtype=np.float32)


class MaskedObservation(gym.Wrapper[Any, Any, Any, Any]):
    """Moves the action mask of a Dict observation to the info."""

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        assert isinstance(env.observation_space, spaces.Dict)
        parts = env.observation_space.spaces.items()
        # A list, since the keys of a dictionary would be sorted.
        self.observation_space = spaces.Dict([(k, part) for k, part in parts if k != ACTION_MASK])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return _moved(*self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        obs, info = _moved(obs, info)
        return obs, reward, terminated, truncated, info


def _moved(obs: dict[str, Any], info: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    rest = {key: part for key, part in obs.items() if key != ACTION_MASK}
    return rest, {**info, ACTION_MASK: obs[ACTION_MASK]}


class WithoutMask(gym.Wrapper[Any, Any, Any, Any]):
    """Drops action masks: all actions may be taken."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, info = self.env.reset(seed=seed, options=options)
        return obs, _without_mask(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        *result, info = self.env.step(action)
        return *result, _without_mask(info)


def _without_mask(info: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in info.items() if key != ACTION_MASK}
