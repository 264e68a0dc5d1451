"""Rollout workers that come, go, die, hang and are replaced while a training goes on."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_service.algorithms.base import OnPolicyAlgorithm
from rl_service.config.settings import EnvSettings, Settings
from rl_service.errors import TrainingFailedError, WorkersLostError
from rl_service.runs import Run
from rl_service.trainer import Trainer
from rl_service.training import train
from tests import faulty_envs
from tests.recorder import Recorder
from tests.small_runs import assert_resume_is_exact, small_settings, worker_pids

pytestmark = pytest.mark.usefixtures("local_ray")

PATIENCE_S = 120.0


def settings_of(folder: Path | None = None, **resources: Any) -> Settings:
    """Two workers, of which four find room; with a folder, of environments that it tells."""
    settings = small_settings(iterations=10_000, output_dir=folder)
    base = settings.resources.model_copy(
        update={"num_env_runners": 2, "num_cpus_per_env_runner": 0.5, **resources}
    )
    changes: dict[str, Any] = {"resources": base}
    if folder is not None:
        env_id, kwargs = "tests.faulty_envs:Told", {"folder": str(folder)}
        changes["env"] = EnvSettings(id=env_id, kwargs=kwargs, max_episode_steps=50)
    return settings.model_copy(update=changes)


def train_until(algorithm: OnPolicyAlgorithm, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        algorithm.train()


def streams(algorithm: OnPolicyAlgorithm) -> set[tuple[int, ...]]:
    """What the episodes of each env of each worker are seeded from."""
    assert algorithm.fleet is not None
    return {each for found in algorithm.fleet.call("apply", _streams).values() for each in found}


def _streams(worker: Any) -> list[tuple[int, ...]]:
    return [env._stream for env in worker.async_env.get_sub_environments()]


def _weights(worker: Any) -> Any:
    return worker.policy_map["default_policy"].get_weights()


def test_workers_come_and_go_and_the_batch_stays(build: Any) -> None:
    algorithm = build(settings_of(num_env_runners=1))
    counts = []
    for wanted in (1, 3, 1, 2):
        algorithm.start_workers()
        algorithm.fleet.resize(wanted)
        train_until(algorithm, lambda: len(algorithm.fleet.ready) == wanted)  # noqa: B023
        for _ in range(3):
            learned = algorithm.train()["info"]["learner"]
            assert learned["weights_lag"] == 0
        counts.append(algorithm.num_sampling_workers)
        assert len(streams(algorithm)) == 2 * wanted
        expected = algorithm.learner_policy.get_weights()
        for theirs in algorithm.fleet.call("apply", _weights).values():
            for name, value in expected.items():
                np.testing.assert_array_equal(theirs[name], value)
    assert counts == [1, 3, 1, 2]
    assert algorithm.env_steps == 128 * algorithm.iteration
    assert list(algorithm.fleet.ready) == [1, 4]  # 2 and 3 were the newest, and no index comes back
    assert algorithm.fleet.num_restarts == 0


def test_a_new_worker_samples_with_the_filter_of_all(build: Any) -> None:
    algorithm = build(settings_of(num_env_runners=1))
    for _ in range(5):
        algorithm.train()
    algorithm.fleet.resize(2)
    train_until(algorithm, lambda: len(algorithm.fleet.ready) == 2)
    algorithm.train()
    counts = algorithm.fleet.call("apply", lambda w: w.filters["default_policy"].stats.count)
    assert min(counts.values()) > 4 * 128


def test_who_finds_no_room_keeps_nobody_waiting(build: Any) -> None:
    algorithm = build(settings_of(num_env_runners=1, num_cpus_per_env_runner=1.0))
    algorithm.train()
    algorithm.fleet.resize(5)
    train_until(algorithm, lambda: len(algorithm.fleet.ready) == 2)
    for _ in range(3):
        algorithm.train()
    assert (len(algorithm.fleet.ready), algorithm.fleet.num_starting) == (2, 3)
    algorithm.fleet.resize(1)
    assert (list(algorithm.fleet.ready), algorithm.fleet.num_starting) == ([1], 0)


def test_a_killed_worker_is_replaced_by_one_that_plays_other_episodes(build: Any) -> None:
    algorithm = build(settings_of())
    algorithm.train()
    before = streams(algorithm)
    os.kill(worker_pids()[0], signal.SIGKILL)
    train_until(
        algorithm,
        lambda: algorithm.fleet.num_restarts == 1 and len(algorithm.fleet.ready) == 2,
    )
    assert algorithm.env_steps == 128 * algorithm.iteration
    assert len(streams(algorithm) - before) == 2
    assert max(algorithm.fleet.ready) == 3
    [message] = algorithm.fleet.pop_messages()
    assert message.endswith("is lost (its process died); 1 left")


def test_a_worker_that_stands_still_is_replaced(build: Any, tmp_path: Path) -> None:
    algorithm = build(settings_of(tmp_path, worker_timeout_s=1.0))
    algorithm.train()
    (tmp_path / faulty_envs.HANGS).touch()
    train_until(
        algorithm,
        lambda: algorithm.fleet.num_restarts == 1 and len(algorithm.fleet.ready) == 2,
    )
    assert algorithm.env_steps == 128 * algorithm.iteration
    [message] = algorithm.fleet.pop_messages()
    assert "is lost (it finished no step in 1 s); 1 left" in message
    assert len(worker_pids()) == 2


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (faulty_envs.RAISES, "RuntimeError: the motor is stuck"),
        (faulty_envs.NAN, "observation has NaN at index 0"),
    ],
)
def test_an_episode_that_fails_is_dropped_and_told(
    fault: str, error: str, workers: int, tmp_path: Path
) -> None:
    trainer = Trainer(settings_of(tmp_path, num_env_runners=workers))
    try:
        assert trainer.iterate()["num_failed_episodes"] == 0
        (tmp_path / fault).touch()
        rows = [trainer.iterate() for _ in range(3)]
        trainer.save(tmp_path)
    finally:
        trainer.close()
    assert rows[-1]["num_failed_episodes"] == 1
    assert trainer.algo.env_steps == 4 * 128
    assert all(np.isfinite(row["policy_loss"]) for row in rows)
    [message] = trainer.pop_messages()
    assert message.startswith("1 episode(s) failed in the environment and were dropped; the last: ")
    assert message.endswith(error)
    again = Trainer(settings_of(tmp_path, num_env_runners=workers))
    try:
        again.restore(tmp_path)
        assert again.iterate()["num_failed_episodes"] == 1
    finally:
        again.close()


class LosesAll(Recorder):
    """Lets no environment be made any more, and kills all workers, after two iterations."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def on_iteration(self, row: Any) -> None:
        super().on_iteration(row)
        if row["training_iteration"] == 2:
            (self._folder / faulty_envs.ABSENT).touch()
            for pid in worker_pids():
                os.kill(pid, signal.SIGKILL)


def test_a_run_that_loses_all_workers_saves_and_ends_and_goes_on_later(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, lost_timeout_s=3.0)
    settings = settings.model_copy(
        update={
            "stop": settings.stop.model_copy(update={"iterations": 4}),
            "tracking": settings.tracking.model_copy(update={"checkpoint_interval": 1000}),
        }
    )
    run = Run.create(settings, command=[])
    recorder = LosesAll(tmp_path)
    with pytest.raises(WorkersLostError, match=r"none came within 3 s .*--resume"):
        train(settings, observer=recorder, run=run)
    done = recorder.rows[-1]["training_iteration"]
    assert any("the simulator is away" in m for m in recorder.messages)
    assert run.checkpoints.latest() is not None
    (tmp_path / faulty_envs.ABSENT).unlink()
    again = Recorder()
    result = train(settings, observer=again, run=run)
    assert (result.status, again.rows[0]["training_iteration"]) == ("finished", done + 1)
    assert [row["training_iteration"] for row in run.read_progress()] == [1, 2, 3, 4]
    assert result.env_steps == 4 * 128


def test_an_environment_that_cannot_be_made_ends_the_run_at_once(
    build: Any, tmp_path: Path
) -> None:
    algorithm = build(settings_of(tmp_path))
    (tmp_path / faulty_envs.ABSENT).touch()
    with pytest.raises(
        TrainingFailedError,
        match=r"worker [12] did not start: EnvError: environment .* the simulator is away",
    ):
        algorithm.train()


def test_a_checkpoint_after_a_loss_brings_the_same_workers_back(build: Any, tmp_path: Path) -> None:
    algorithm = build(settings_of())
    algorithm.train()
    os.kill(worker_pids()[0], signal.SIGKILL)
    train_until(algorithm, lambda: max(algorithm.fleet.ready, default=0) == 3)
    algorithm.train()
    indices, playing = list(algorithm.fleet.ready), streams(algorithm)
    algorithm.save_checkpoint(str(tmp_path))
    hours = algorithm.fleet.worker_hours
    algorithm.stop()
    resumed = build(settings_of())
    resumed.load_checkpoint(str(tmp_path))
    resumed.train()
    assert list(resumed.fleet.ready) == indices
    assert streams(resumed) == playing
    assert resumed.fleet.num_restarts == 1
    assert resumed.fleet.worker_hours >= hours
    resumed.fleet.resize(3)
    train_until(resumed, lambda: len(resumed.fleet.ready) == 3)
    assert max(resumed.fleet.ready) == 4


def test_a_run_with_workers_resumes_bit_for_bit(build: Any, tmp_path: Path) -> None:
    assert_resume_is_exact(build, settings_of(), tmp_path, iterations=3)


def test_the_rows_of_a_training_tell_of_its_workers() -> None:
    trainer = Trainer(settings_of())
    try:
        row = trainer.iterate()
    finally:
        trainer.close()
    assert (row["num_env_runners"], row["num_env_runners_target"]) == (2, 2)
    assert row["worker_hours"] > 0.0
    assert "scaling_reason" not in row
    json.dumps(row["num_worker_restarts"])
