"""Stable-Baselines3's PPO, learning included."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

VEC_ENVS: dict[str, tuple[type[DummyVecEnv | SubprocVecEnv], dict[str, Any]]] = {
    "dummy": (DummyVecEnv, {}),
    # Forked: sixteen fresh interpreters would take half a minute to start, and run no faster.
    "subproc": (SubprocVecEnv, {"start_method": "fork"}),
}


class SB3Training:
    """One run; nets are its defaults, 64-64 tanh for policy and value apart."""

    def __init__(
        self,
        env_id: str,
        vec_env: str,
        num_envs: int,
        train_batch_size: int,
        minibatch_size: int,
        num_epochs: int,
        seed: int = 1,
    ) -> None:
        torch.set_num_threads(1)
        vec_env_class, kwargs = VEC_ENVS[vec_env]
        self._envs = make_vec_env(
            env_id, num_envs, seed=seed, vec_env_cls=vec_env_class, vec_env_kwargs=kwargs
        )
        self._train_batch_size = train_batch_size
        self._ppo = PPO(
            "MlpPolicy",
            self._envs,
            n_steps=train_batch_size // num_envs,
            batch_size=minibatch_size,
            n_epochs=num_epochs,
            policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}},
            seed=seed,
            device="cpu",
        )

    def close(self) -> None:
        self._envs.close()

    def train(self, iterations: int) -> float:
        """Trains on; env steps a second."""
        steps = iterations * self._train_batch_size
        started = time.perf_counter()
        self._ppo.learn(steps, reset_num_timesteps=False)
        return steps / (time.perf_counter() - started)


class SB3Learning(SB3Training):
    """A run that is scored at its end."""

    def __init__(self, env_id: str, seed: int, **sizes: int) -> None:
        super().__init__(env_id, "dummy", seed=seed, **sizes)
        self._env_id, self._seed = env_id, seed

    def learn(self, env_steps: int, num_episodes: int) -> list[float]:
        """Trains, then plays deterministic episodes from seed + i; their returns."""
        self._ppo.learn(env_steps)
        env = gym.make(self._env_id)
        returns = []
        for i in range(num_episodes):
            obs, _ = env.reset(seed=self._seed + i)
            total, ended = 0.0, False
            while not ended:
                action, _ = self._ppo.predict(obs, deterministic=True)
                obs, reward, terminated, truncated, _ = env.step(action)
                total, ended = total + float(reward), terminated or truncated
            returns.append(total)
        return returns
