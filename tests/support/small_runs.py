"""Runs of seconds, for tests that train."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from custom_models.configs import GPT2CriticConfig, MLPConfig
from custom_models.model_config import ModelConfig
from rl_service.algorithms.base import OnPolicyAlgorithm
from rl_service.config.algorithms import A2CSettings, OnPolicySettings, PPOSettings, TRPOSettings
from rl_service.config.settings import (
    EnvSettings,
    EvaluationSettings,
    ResourceSettings,
    Settings,
    StopSettings,
    TrackingSettings,
)
from tests.support.rays import worker_pids
from tests.support.recorder import Recorder

MLP = MLPConfig(hidden_sizes=(16,), critic_hidden_sizes=(16,))
GPT2 = GPT2CriticConfig(
    hidden_sizes=(16, 16), context_length=8, n_layer=2, n_head=2, n_embd=16, dropout=0.1
)
GPT2_ACTOR = GPT2.model_copy(update={"actor_net": "gpt2", "actor_context_length": 12})

SMALL: dict[type[OnPolicySettings], dict[str, Any]] = {
    PPOSettings: {"minibatch_size": 32, "num_epochs": 2},
    A2CSettings: {"rollout_fragment_length": 16},
    TRPOSettings: {"minibatch_size": 32, "critic_num_epochs": 2},
}


def small_settings(
    model: ModelConfig = MLP,
    *,
    env: str = "Pendulum-v1",
    workers: int = 0,
    iterations: int = 4,
    output_dir: Path | None = None,
    algorithm: type[OnPolicySettings] = PPOSettings,
    **changed: Any,
) -> Settings:
    """Settings of a run of seconds; `changed` are those of the algorithm."""
    return Settings(
        env=EnvSettings(
            id=env,
            max_episode_steps=50,
            observation_filter="MeanStdFilter",
            normalize_returns=True,
        ),
        model=model,
        algorithm=algorithm(
            **{
                "train_batch_size": 128,
                "lr_schedule": "linear",
                **_small_of(algorithm),
                **changed,
            }
        ),
        resources=ResourceSettings(num_env_runners=workers, num_envs_per_env_runner=2),
        stop=StopSettings(iterations=iterations),
        evaluation=EvaluationSettings(interval=2, num_episodes=2, final_num_episodes=2),
        tracking=TrackingSettings(
            output_dir=str(output_dir or "."), tensorboard=False, checkpoint_interval=1
        ),
        seed=5,
    )


def _small_of(algorithm: type[OnPolicySettings]) -> dict[str, Any]:
    """Of the built-in algorithm that it is or derives from."""
    return next(small for kind, small in SMALL.items() if issubclass(algorithm, kind))


def weights(algorithm: OnPolicyAlgorithm) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in algorithm.learner_policy.net.state_dict().items()}


def assert_equal_weights(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def assert_resume_is_exact(
    build: Callable[[Settings], OnPolicyAlgorithm],
    settings: Settings,
    folder: Path,
    iterations: int,
) -> None:
    """A run resumed half-way ends with the weights of one that was never stopped, bit for bit.

    Args:
        build: of the fixture.
        settings: of both runs.
        folder: for the checkpoint.
        iterations: before it, and again after it.
    """
    unbroken = build(settings)
    for _ in range(iterations):
        unbroken.train()
    unbroken.save_checkpoint(str(folder))
    for _ in range(iterations):
        unbroken.train()
    expected, steps = weights(unbroken), unbroken.env_steps
    unbroken.stop()
    resumed = build(settings)
    resumed.load_checkpoint(str(folder))
    assert resumed.iteration == iterations
    for _ in range(iterations):
        resumed.train()
    assert (resumed.iteration, resumed.env_steps) == (2 * iterations, steps)
    assert steps == 2 * iterations * settings.algorithm.train_batch_size
    assert_equal_weights(weights(resumed), expected)


class KillsAWorker(Recorder):
    """Kills a rollout worker after the second iteration."""

    def on_iteration(self, row: Mapping[str, Any]) -> None:
        super().on_iteration(row)
        if row["training_iteration"] == 2:
            os.kill(worker_pids()[0], signal.SIGKILL)
