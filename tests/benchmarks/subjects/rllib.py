"""RLlib's own PPO: its new API stack, its rollout workers, its learner in this process."""

from __future__ import annotations

import math
import os
import time
from typing import Any

import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

LR = 3e-4


class RLlibTraining:
    """One run.

    Args:
        env_id: of gymnasium.
        num_env_runners: rollout workers, between which the envs are divided.
        num_envs: how many in all.
        train_batch_size: env steps of an iteration.
        minibatch_size: env steps of a gradient step.
        num_epochs: passes over each batch.
        seed: of everything random.
    """

    def __init__(
        self,
        env_id: str,
        num_env_runners: int,
        num_envs: int,
        train_batch_size: int,
        minibatch_size: int,
        num_epochs: int,
        seed: int = 1,
    ) -> None:
        torch.set_num_threads(1)
        # Ray starts workers at niceness 15; ours have 0.
        os.environ.setdefault("RAY_worker_niceness", "0")
        ray.init(num_cpus=num_env_runners, include_dashboard=False)
        config = (
            PPOConfig()
            .environment(env_id)
            .env_runners(
                num_env_runners=num_env_runners,
                num_envs_per_env_runner=num_envs // num_env_runners,
                rollout_fragment_length=train_batch_size // num_envs,
            )
            .learners(num_learners=0)
            .rl_module(
                model_config=DefaultModelConfig(
                    fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False
                )
            )
            .training(
                lr=LR,
                train_batch_size_per_learner=train_batch_size,
                minibatch_size=minibatch_size,
                num_epochs=num_epochs,
                gamma=0.99,
                lambda_=0.95,
                clip_param=0.2,
                vf_clip_param=math.inf,
                vf_loss_coeff=0.5,
                entropy_coeff=0.0,
                use_kl_loss=False,
                grad_clip=0.5,
                grad_clip_by="global_norm",
            )
            .debugging(seed=seed, log_level="ERROR")
        )
        self._algorithm = config.build_algo()
        self._result: dict[str, Any] = {}

    def close(self) -> None:
        self._algorithm.stop()
        ray.shutdown()

    def train(self, iterations: int) -> float:
        """Trains on; env steps a second."""
        before, started = self._env_steps(), time.perf_counter()
        for _ in range(iterations):
            self._result = self._algorithm.train()
        return (self._env_steps() - before) / (time.perf_counter() - started)

    def episode_return(self) -> float:
        """Mean of the last 100 episodes of training."""
        return float(self._result["env_runners"].get("episode_return_mean", math.nan))

    def _env_steps(self) -> int:
        if not self._result:
            return 0
        return int(self._result["env_runners"]["num_env_steps_sampled_lifetime"])
