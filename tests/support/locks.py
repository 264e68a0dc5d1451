"""An environment of all kinds of spaces, with an action mask."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

_PARTS = {
    "wheel": spaces.Discrete(4, start=3),
    "code": spaces.MultiBinary(3),
    "rest": spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.Box(-1, 1, (2,), np.float64))),
}
MASK = spaces.Box(0, 1, (10,), np.int8)


class IllegalAction(Exception):
    pass


class Locks(gym.Env[dict[str, Any], Any]):
    """Turn the wheel to where it is shown, and set three switches: 2 points a step at most.

    The place after the right one on the wheel is forbidden, and so is switching on in last place.

    Args:
        mask: where it is given: `obs`, `info` or nowhere (`none`).
        fault: a mask that is wrong from the second step on: `short` or `all zero`.
    """

    action_space = spaces.MultiDiscrete([4, 2, 2, 2])

    def __init__(self, mask: str = "obs", fault: str | None = None) -> None:
        self._mask, self._fault = mask, fault
        parts = {**_PARTS, "action_mask": MASK} if mask == "obs" else _PARTS
        self.observation_space = spaces.Dict(parts)
        self._t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._t = 0
        return self._shown()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._mask != "none" and (action[0] == (self._wheel + 1) % 4 or action[3] == 1):
            raise IllegalAction(str(action))
        right = float((action[1:] == self._code).mean())
        reward = float(action[0] == self._wheel) + right
        self._t += 1
        obs, info = self._shown()
        return obs, reward, False, self._t == 20, info

    def _shown(self) -> tuple[dict[str, Any], dict[str, Any]]:
        self._wheel = int(self.np_random.integers(4))
        self._code = np.append(self.np_random.integers(0, 2, 2), 0).astype(np.int8)
        obs = {
            "wheel": self._wheel + 3,
            "code": self._code,
            "rest": (np.array([1, 2]), np.full(2, 0.5)),
        }
        mask = np.ones(10, np.int8)
        mask[(self._wheel + 1) % 4] = mask[9] = 0
        if self._fault and self._t:
            mask = mask[1:] if self._fault == "short" else mask * 0
        if self._t == 20:  # nobody looks after the end
            mask = mask * 0
        if self._mask == "obs":
            return {**obs, "action_mask": mask}, {}
        return obs, {"action_mask": mask} if self._mask == "info" else {}
