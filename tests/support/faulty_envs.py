"""An environment that does what files in a folder tell it, in whatever process it is."""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

SLOW_STEP_S = 0.01

ABSENT, HANGS, RAISES, NAN = "absent", "hangs", "raises", "nan"


class Told(gym.Wrapper[Any, Any, Any, Any]):
    """Another environment with faults.

    Args:
        folder: while a file `absent` is in it, no environment can be made; a file `hangs`,
            `raises` or `nan` is removed by the first one that sees it in a step, which then
            stands still, raises or returns NaN.
        inner: id of the environment.
        render_mode: gymnasium's.
    """

    def __init__(
        self, folder: str, inner: str = "CartPole-v1", render_mode: str | None = None
    ) -> None:
        self._folder = Path(folder)
        if (self._folder / ABSENT).exists():
            raise RuntimeError("the simulator is away")
        super().__init__(gym.make(inner, render_mode=render_mode))

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        if self._is_told(HANGS):
            time.sleep(1000.0)
        if self._is_told(RAISES):
            raise RuntimeError("the motor is stuck")
        if self._is_told(NAN):
            obs = np.full_like(obs, np.nan)
        return obs, *rest

    def _is_told(self, what: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            (self._folder / what).unlink()
            return True
        return False


class Spawning(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole-v1 with a process of its own, whose id is in a file `spawned`.

    Args:
        folder: for that file.
        render_mode: gymnasium's.
    """

    def __init__(self, folder: str, render_mode: str | None = None) -> None:
        super().__init__(gym.make("CartPole-v1", render_mode=render_mode))
        process = subprocess.Popen(["sleep", "1000"])
        Path(folder, "spawned").write_text(str(process.pid))


class Slow(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole-v1 whose steps take `SLOW_STEP_S`, and its resets much longer."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        time.sleep(0.3)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        time.sleep(SLOW_STEP_S)
        return super().step(action)
