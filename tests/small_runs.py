"""Runs of seconds, for tests that train."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from custom_models.configs import GPT2CriticConfig, MLPConfig, ModelConfig
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

MLP = MLPConfig(hidden_sizes=(16,), critic_hidden_sizes=(16,))
GPT2 = GPT2CriticConfig(
    hidden_sizes=(16, 16), context_length=8, n_layer=2, n_head=2, n_embd=16, dropout=0.1
)

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
                **SMALL[algorithm],
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


def weights(algorithm: OnPolicyAlgorithm) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in algorithm.learner_policy.net.state_dict().items()}


def assert_equal_weights(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def worker_pids() -> list[int]:
    """The rollout workers below this process: driver, raylet, worker."""
    processes = {int(p.name): p for p in Path("/proc").iterdir() if p.name.isdigit()}
    return [
        pid
        for pid, path in processes.items()
        if _command(path).startswith("ray::VectorRolloutWorker")
        and _parent(processes.get(_parent(path))) == os.getpid()
    ]


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().split(b"\0")[0].decode()
    except OSError:  # it has ended meanwhile
        return ""


def _parent(process: Path | None) -> int:
    if process is None:
        return 0
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
