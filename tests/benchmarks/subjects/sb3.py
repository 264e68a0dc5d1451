"""Stable-Baselines3's PPO and A2C, sb3-contrib's TRPO and recurrent PPO, learning included."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from sb3_contrib import TRPO, RecurrentPPO
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

import rl_service.rollout.partly_observed  # noqa: F401  # registers environments

VEC_ENVS: dict[str, tuple[type[DummyVecEnv | SubprocVecEnv], dict[str, Any]]] = {
    "dummy": (DummyVecEnv, {}),
    # Forked: sixteen fresh interpreters would take half a minute to start, and run no faster.
    "subproc": (SubprocVecEnv, {"start_method": "fork"}),
}


def open_vec_env(env_id: str, vec_env: str, num_envs: int, seed: int) -> VecEnv:
    """Envs of gymnasium, stepped in one of the ways of `VEC_ENVS`."""
    vec_env_class, kwargs = VEC_ENVS[vec_env]
    return make_vec_env(
        env_id, num_envs, seed=seed, vec_env_cls=vec_env_class, vec_env_kwargs=kwargs
    )


ALGORITHMS = {"ppo": PPO, "a2c": A2C, "trpo": TRPO, "recurrent_ppo": RecurrentPPO}


class SB3Training:
    """One run; nets are its defaults, 64-64 tanh for policy and value apart.

    Args:
        env_id: of gymnasium.
        vec_env: of `VEC_ENVS`.
        num_envs: how many.
        algorithm: of `ALGORITHMS`.
        arguments: of its class; among them `n_steps`, of each env between two updates.
        steps_per_iteration: env steps that `train` counts as one.
        seed: of everything random.
        lstm_size: of the LSTMs before these nets, one each, if the algorithm is recurrent.
    """

    algorithms: ClassVar[dict[str, Any]] = ALGORITHMS
    open_vec_env = staticmethod(open_vec_env)

    def __init__(
        self,
        env_id: str,
        vec_env: str,
        num_envs: int,
        algorithm: str,
        arguments: dict[str, Any],
        steps_per_iteration: int,
        seed: int = 1,
        lstm_size: int | None = None,
    ) -> None:
        torch.set_num_threads(1)
        self._envs = self.open_vec_env(env_id, vec_env, num_envs, seed)
        self._env_id, self._seed = env_id, seed
        self._steps_per_iteration = steps_per_iteration
        nets: dict[str, Any] = {"net_arch": {"pi": [64, 64], "vf": [64, 64]}}
        if lstm_size is not None:
            nets["lstm_hidden_size"] = lstm_size
        self._model = self.algorithms[algorithm](
            "MlpPolicy" if lstm_size is None else "MlpLstmPolicy",
            self._envs,
            **arguments,
            policy_kwargs=nets,
            seed=seed,
            device="cpu",
        )

    def close(self) -> None:
        self._envs.close()

    def train(self, iterations: int) -> float:
        """Trains on; env steps a second."""
        steps = iterations * self._steps_per_iteration
        started = time.perf_counter()
        self._model.learn(steps, reset_num_timesteps=False)
        return steps / (time.perf_counter() - started)

    def episode_return(self) -> float:
        """Mean of the last 100 episodes of training."""
        return float(np.mean([each["r"] for each in self._model.ep_info_buffer]))

    def curve(self, env_steps: int) -> list[tuple[int, float]]:
        """Trains; after each iteration, the steps so far and the mean return of 100 episodes."""
        curve: list[tuple[int, float]] = []

        def on_step(found: dict[str, Any], _: dict[str, Any]) -> bool:
            model = found["self"]
            done = model.num_timesteps
            if done % self._steps_per_iteration == 0 and model.ep_info_buffer:
                curve.append((done, self.episode_return()))
            return True

        self._model.learn(env_steps, callback=on_step)
        return curve

    def learn(self, env_steps: int, num_episodes: int) -> list[float]:
        """Trains, then plays deterministic episodes from seed + i; their returns."""
        self._model.learn(env_steps)
        env = gym.make(self._env_id)
        returns = []
        for i in range(num_episodes):
            obs, _ = env.reset(seed=self._seed + i)
            state, total, ended = None, 0.0, False
            while not ended:
                start = np.array([state is None])
                action, state = self._model.predict(obs, state, start, deterministic=True)
                obs, reward, terminated, truncated, _ = env.step(action)
                total, ended = total + float(reward), terminated or truncated
            returns.append(total)
        return returns
