"""SBX's PPO: Stable-Baselines3's loop, its nets and their update compiled by JAX."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from sbx import PPO
from stable_baselines3.common.vec_env import VecEnv, VecMonitor

from tests.benchmarks.subjects.sb3 import SB3Training, open_vec_env
from tests.benchmarks.subjects.vector_envs import open_envpool


class EnvPoolVecEnv(VecEnv):
    """EnvPool for Stable-Baselines3, which expects an env to be reset within its last step."""

    def __init__(self, env_id: str, num_envs: int, seed: int) -> None:
        self._pool, _ = open_envpool(env_id, num_envs, seed)
        with gym.make(env_id) as env:  # EnvPool's spaces have other types and bounds
            super().__init__(num_envs, env.observation_space, env.action_space)

    def reset(self) -> np.ndarray:
        return self._pool.reset()[0].astype(np.float32)

    def step_async(self, actions: np.ndarray) -> None:
        self._pool.send(actions)

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        obs, rewards, terminated, truncated, _ = self._pool.recv()
        obs, ended = obs.astype(np.float32), terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if ended.any():
            rows = np.flatnonzero(ended)
            for row in rows:
                limited = bool(truncated[row])
                infos[row] = {"terminal_observation": obs[row].copy()}
                infos[row]["TimeLimit.truncated"] = limited
            obs[rows] = self._pool.reset(rows)[0]
        return obs, rewards, ended, infos

    def close(self) -> None:
        self._pool.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs  # of what is asked for, EnvPool has nothing

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> Any:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs

    def seed(self, seed: int | None = None) -> list[int | None]:
        return [None] * self.num_envs  # EnvPool is seeded when it is made


def open_any_vec_env(env_id: str, vec_env: str, num_envs: int, seed: int) -> VecEnv:
    """EnvPool, or one of `sb3.VEC_ENVS`; both count episodes."""
    if vec_env == "envpool":
        return VecMonitor(EnvPoolVecEnv(env_id, num_envs, seed))
    return open_vec_env(env_id, vec_env, num_envs, seed)


class SBXTraining(SB3Training):
    """One run, with the arguments of `SB3Training`; `vec_env` may also be `envpool`."""

    algorithms: ClassVar[dict[str, Any]] = {"ppo": PPO}
    open_vec_env = staticmethod(open_any_vec_env)
