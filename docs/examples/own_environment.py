"""Your own environment: `rl-service train -m mlp -e docs.examples.own_environment:Corridor`.

Any `gymnasium.Env` works whose observations are a Box of numbers and whose actions are Discrete or
a Box. It is tried with one reset and one step before a run starts.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

Observation = npt.NDArray[np.float32]


class Corridor(gym.Env[Observation, int]):
    """Walk right to the end of a corridor. Each step costs 0.1; the last one pays 1.

    Args:
        length: number of cells.
    """

    def __init__(self, length: int = 8, render_mode: str | None = None) -> None:
        self.length = length
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._cell = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._cell = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self._cell = max(0, self._cell + (1 if action == 1 else -1))
        arrived = self._cell == self.length
        return self._observe(), 1.0 if arrived else -0.1, arrived, False, {}

    def _observe(self) -> Observation:
        return np.array([self._cell / self.length], np.float32)
