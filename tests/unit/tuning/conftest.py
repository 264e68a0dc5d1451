"""Small runs with known numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from custom_models.configs import MLPConfig
from rl_service.config.algorithms import PPOSettings
from rl_service.config.settings import EnvSettings, Settings
from rl_service.training.run import Run

Row = Mapping[str, float | None]
WriteRun = Callable[..., Run]


@pytest.fixture
def write_run(in_tmp_path: Path) -> WriteRun:
    """Writes a run under `./runs` whose training returns at 100, 200, … env steps are given."""

    def write(
        *returns: float | None, seed: int = 0, actor_lr: float = 3e-4, further: Row | None = None
    ) -> Run:
        settings = Settings(
            env=EnvSettings(id="CartPole-v1"),
            model=MLPConfig(),
            algorithm=PPOSettings(actor_lr=actor_lr),
            seed=seed,
        )
        run = Run.create(settings, command=[])
        for i, value in enumerate(returns, start=1):
            row = {"num_env_steps_sampled_lifetime": 100 * i, "episode_return_mean": value}
            run.append_progress({"training_iteration": i, **row, **(further or {})})
        return run

    return write
