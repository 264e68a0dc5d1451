"""Stable-Baselines3's PPO, learning included."""

from __future__ import annotations

import time
from typing import Any

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
    ) -> None:
        torch.set_num_threads(1)
        vec_env_class, kwargs = VEC_ENVS[vec_env]
        self._envs = make_vec_env(
            env_id, num_envs, seed=1, vec_env_cls=vec_env_class, vec_env_kwargs=kwargs
        )
        self._train_batch_size = train_batch_size
        self._ppo = PPO(
            "MlpPolicy",
            self._envs,
            n_steps=train_batch_size // num_envs,
            batch_size=minibatch_size,
            n_epochs=num_epochs,
            policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}},
            seed=1,
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
