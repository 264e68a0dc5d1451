"""An output folder with small runs of known numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from custom_models.configs import MLPConfig
from rl_service.common.metrics import ENV_STEPS
from rl_service.config.algorithms import PPOSettings
from rl_service.config.settings import (
    EnvSettings,
    EvaluationSettings,
    Settings,
    StopSettings,
    TrackingSettings,
)
from rl_service.page.library import RunLibrary
from rl_service.page.progress import RETURN
from rl_service.training.run import Run

WriteRun = Callable[..., Run]


@pytest.fixture
def library(tmp_path: Path) -> RunLibrary:
    return RunLibrary(tmp_path)


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """Writes a run that returns what is given, at 100, 200, … env steps."""

    def write(
        *returns: float | None, seed: int = 0, actor_lr: float = 3e-4, iterations: int = 100
    ) -> Run:
        settings = Settings(
            env=EnvSettings(id="CartPole-v1"),
            model=MLPConfig(),
            algorithm=PPOSettings(actor_lr=actor_lr),
            stop=StopSettings(iterations=iterations),
            evaluation=EvaluationSettings(interval=2),
            tracking=TrackingSettings(output_dir=str(tmp_path), experiment="test"),
            seed=seed,
        )
        run = Run.create(settings, command=[])
        for i, value in enumerate(returns, start=1):
            run.append_progress(row(i, value))
        return run

    return write


def row(iteration: int, episode_return: float | None, **more: float) -> dict[str, Any]:
    return {
        "training_iteration": iteration,
        ENV_STEPS: 100 * iteration,
        RETURN: episode_return,
        "time_total_s": 2.5 * iteration,
        **more,
    }


def run_id(run: Run) -> str:
    return f"{run.path.parent.name}/{run.path.name}"


def curve(library: RunLibrary, run: Run, metric: str = RETURN) -> tuple[list[float], list[float]]:
    """Env steps and values."""
    [group] = library.curves([run_id(run)], metric, "steps", 400)["groups"]
    assert group["low"] == group["mean"] == group["high"]
    return group["x"], group["mean"]
