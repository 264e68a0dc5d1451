"""Training on EnvPool, evaluated on gymnasium."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_service.config.settings import Settings, StopSettings
from rl_service.training.run import Run
from rl_service.training.train import train
from tests.support.recorder import Recorder
from tests.support.small_runs import GPT2_ACTOR, MLP, KillsAWorker, small_settings

pytestmark = pytest.mark.usefixtures("local_ray")


def settings_of(folder: Path, workers: int, iterations: int, model: Any = MLP) -> Settings:
    settings = small_settings(model, workers=workers, iterations=iterations, output_dir=folder)
    env = settings.env.model_copy(update={"backend": "envpool"})
    return settings.model_copy(update={"env": env})


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("model", [MLP, GPT2_ACTOR], ids=["mlp", "gpt2 acts"])
def test_a_run_is_evaluated_and_resumed(workers: int, model: Any, tmp_path: Path) -> None:
    settings = settings_of(tmp_path, workers, 2, model)
    run, recorder = Run.create(settings, command=[]), Recorder()
    train(settings, observer=recorder, run=run)
    longer = settings.model_copy(update={"stop": StopSettings(iterations=4)})
    train(longer, observer=recorder, run=run)
    assert [row["training_iteration"] for row in recorder.rows] == [1, 2, 3, 4]
    assert [row["num_env_steps_sampled_lifetime"] for row in recorder.rows] == [
        128 * n for n in (1, 2, 3, 4)
    ]
    assert all(row["num_failed_episodes"] == 0 for row in recorder.rows)
    written = (run.path / "progress.jsonl").read_text(encoding="utf-8")
    assert written.count("evaluation/episode_return_mean") == 2  # after every second iteration
    before, after = (row["episode_return_mean"] for row in (recorder.rows[0], recorder.rows[-1]))
    assert before != after


def test_a_worker_that_dies_is_replaced(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, 2, 6)
    recorder = KillsAWorker()
    train(settings, observer=recorder, run=Run.create(settings, command=[]))
    assert recorder.rows[-1]["num_env_steps_sampled_lifetime"] == 6 * 128
