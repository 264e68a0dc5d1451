"""Environments that ask for memory: known ones without their velocities, and a recall task.

Importing this module registers them in gymnasium:

- `CartPoleNoVel-v1`, `PendulumNoVel-v1`, `LunarLanderNoVel-v3`, `MountainCarContinuousNoVel-v0`:
  the velocities are zero, as in rl-baselines3-zoo; all else is as before.
- `Recall-v0`: a cue at the first step is the right action N steps later.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from custom_models.spaces import FloatArray
from rl_service.rollout.filters import hide

VELOCITIES = {
    "CartPole-v1": (1, 3),
    "Pendulum-v1": (2,),
    "LunarLander-v3": (2, 3, 5),
    "MountainCarContinuous-v0": (1,),
}
"""Entries of the observation that are velocities."""


class HiddenEntries(gym.ObservationWrapper[FloatArray, Any, npt.NDArray[Any]]):
    """Sets entries of a flat observation to zero.

    Args:
        env: with observations (O,).
        indices: of the entries, 0 to O - 1.
    """

    def __init__(self, env: gym.Env[Any, Any], indices: tuple[int, ...]) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, gym.spaces.Box)
        low, high = space.low.copy(), space.high.copy()
        entries = list(indices)
        low[entries], high[entries] = low[entries].clip(max=0), high[entries].clip(min=0)
        self.observation_space = gym.spaces.Box(low, high, dtype=np.float32)
        self._indices = indices

    def observation(self, observation: FloatArray) -> FloatArray:
        """The observation (O,) without those entries."""
        return hide(observation, self._indices)


class ObservedReward(gym.Wrapper[FloatArray, Any, FloatArray, Any]):
    """Appends to observations (O,) the reward that came with them, 0 after a reset."""

    def __init__(self, env: gym.Env[FloatArray, Any]) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, gym.spaces.Box)
        low, high = (
            np.append(bound, end) for bound, end in ((space.low, -np.inf), (space.high, np.inf))
        )
        self.observation_space = gym.spaces.Box(
            low.astype(np.float32), high.astype(np.float32), dtype=np.float32
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return np.append(obs, np.float32(0.0)), info

    def step(self, action: Any) -> tuple[FloatArray, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return np.append(obs, np.float32(reward)), reward, terminated, truncated, info


def without_velocities(
    env_id: str, render_mode: str | None = None, **kwargs: Any
) -> gym.Env[Any, Any]:
    """Makes an environment of `VELOCITIES` that hides them, without a time limit.

    Args:
        env_id: of gymnasium.
        render_mode: gymnasium's.
        kwargs: for the environment's constructor.
    """
    env = gym.make(
        env_id,
        max_episode_steps=-1,  # gymnasium's way to say none
        disable_env_checker=True,
        render_mode=render_mode,
        **kwargs,
    )
    return HiddenEntries(env, VELOCITIES[env_id])


class Recall(gym.Env[FloatArray, np.int64]):
    """Repeat, after a delay, what was seen at the first step.

    The observation is (cue, go): the cue is -1 or 1 at the first step and 0 afterwards; go is 1 at
    the step whose action counts and 0 before. That step comes `delay` steps after the first; its
    action, 0 for -1 and 1 for 1, is rewarded with 1 if it is right and with -1 if not, and ends
    the episode. Earlier actions do nothing and are not rewarded. The best return is 1, and
    without a memory it is 0 on average.

    Args:
        delay: N, at least 1.
        render_mode: None; there is nothing to draw.
    """

    def __init__(self, delay: int = 10, render_mode: str | None = None) -> None:
        if delay < 1:
            raise ValueError(f"delay={delay} leaves nothing to remember; give at least 1")
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(
            np.array([-1.0, 0.0], np.float32), np.array([1.0, 1.0], np.float32)
        )
        self.action_space = gym.spaces.Discrete(2)
        self._delay = delay
        self._step = self._cue = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        super().reset(seed=seed)
        self._step, self._cue = 0, int(self.np_random.integers(2))
        return np.array([2 * self._cue - 1, 0.0], np.float32), {}

    def step(self, action: np.int64) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        done = self._step == self._delay
        reward = (1.0 if int(action) == self._cue else -1.0) if done else 0.0
        self._step += 1
        return np.array([0.0, self._step == self._delay], np.float32), reward, done, False, {}


for _env_id in VELOCITIES:
    _name, _, _version = _env_id.rpartition("-")
    gym.register(
        f"{_name}NoVel-{_version}",
        entry_point=f"{__name__}:without_velocities",
        max_episode_steps=gym.spec(_env_id).max_episode_steps,
        kwargs={"env_id": _env_id},
    )
gym.register("Recall-v0", entry_point=f"{__name__}:Recall")
