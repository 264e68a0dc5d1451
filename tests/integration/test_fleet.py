"""Rollout workers that come, go, die, hang and are replaced while a training goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

from custom_models.model_config import ModelConfig
from rl_service.algorithms.base import OnPolicyAlgorithm
from rl_service.algorithms.sampling import Background
from rl_service.common.errors import TrainingFailedError, WorkersLostError
from rl_service.config.settings import EnvSettings, Settings
from rl_service.rollout import fleet
from rl_service.training.run import Run
from rl_service.training.train import train
from rl_service.training.trainer import Trainer
from tests.support import faulty_envs
from tests.support.rays import worker_pids
from tests.support.recorder import Recorder
from tests.support.small_runs import GPT2_ACTOR, MLP, small_settings

pytestmark = pytest.mark.usefixtures("local_ray")

PATIENCE_S = 120.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may start workers slowly, which these messages are not about."""
    monkeypatch.setattr(fleet, "_LONG_START_S", float("inf"))


def settings_of(folder: Path | None = None, model: ModelConfig = MLP, **resources: Any) -> Settings:
    """Two workers, of which four find room; with a folder, of environments that it tells."""
    settings = small_settings(model, iterations=10_000, output_dir=folder)
    base = settings.resources.model_copy(
        update={"num_env_runners": 2, "num_cpus_per_env_runner": 0.5, **resources}
    )
    changes: dict[str, Any] = {"resources": base}
    if folder is not None:
        env_id, kwargs = "tests.support.faulty_envs:Told", {"folder": str(folder)}
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


@pytest.mark.parametrize("model", [MLP, GPT2_ACTOR], ids=["mlp", "gpt2 actor"])
def test_workers_come_go_die_and_come_back(build: Any, tmp_path: Path, model: ModelConfig) -> None:
    algorithm = build(settings_of(model=model, num_env_runners=1, num_cpus_per_env_runner=0.6))
    algorithm.train()
    algorithm.fleet.resize(4)  # of which one finds no room, which keeps nobody waiting
    train_until(algorithm, lambda: len(algorithm.fleet.ready) == 3)
    check_all_are_current(algorithm)
    assert (algorithm.num_sampling_workers, algorithm.fleet.num_starting) == (3, 1)
    threads = algorithm.fleet.call("apply", _threads_of_numpy).values()
    assert {1} == {number for found in threads for number in found}
    algorithm.fleet.resize(1)
    check_all_are_current(algorithm)
    assert (list(algorithm.fleet.ready), algorithm.fleet.num_starting) == ([1], 0)
    algorithm.fleet.resize(2)
    train_until(algorithm, lambda: len(algorithm.fleet.ready) == 2)
    assert list(algorithm.fleet.ready) == [1, 5]  # an index never comes back
    assert algorithm.fleet.num_restarts == 0

    before = streams(algorithm)
    messages: list[str] = []
    algorithm.fleet.on_message = messages.append
    os.kill(worker_pids()[0], signal.SIGKILL)
    train_until(algorithm, lambda: max(algorithm.fleet.ready, default=0) == 6)
    check_all_are_current(algorithm)
    assert algorithm.fleet.num_restarts == 1
    assert len(streams(algorithm) - before) == 2
    [message] = messages
    assert message.endswith("is lost (its process died); 1 left")

    indices, playing = list(algorithm.fleet.ready), streams(algorithm)
    algorithm.save_checkpoint(str(tmp_path))
    hours = algorithm.fleet.worker_hours
    algorithm.stop()
    resumed = build(settings_of(model=model, num_env_runners=2, num_cpus_per_env_runner=0.6))
    resumed.load_checkpoint(str(tmp_path))
    resumed.train()
    assert list(resumed.fleet.ready) == indices
    assert streams(resumed) == playing
    assert resumed.fleet.num_restarts == 1
    assert resumed.fleet.worker_hours >= hours


def _threads_of_numpy(worker: Any) -> list[int]:
    return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]


def check_all_are_current(algorithm: OnPolicyAlgorithm) -> None:
    """All workers sample with the newest weights and the filter of all, batches of one size."""
    assert algorithm.fleet is not None
    for _ in range(3):
        assert algorithm.train()["info"]["learner"]["weights_lag"] == 0
    assert algorithm.env_steps == 128 * algorithm.iteration
    assert len(streams(algorithm)) == 2 * len(algorithm.fleet.ready)
    expected = algorithm.learner_policy.get_weights()
    for theirs, count in algorithm.fleet.call("apply", _weights_and_count).values():
        for name, value in expected.items():
            np.testing.assert_array_equal(theirs[name], value)
        assert count > 128 * (algorithm.iteration - 1)


def _weights_and_count(worker: Any) -> Any:
    weights = worker.policy_map["default_policy"].get_weights()
    return weights, worker.filters["default_policy"].stats.count


def test_a_worker_that_stands_still_is_replaced(build: Any, tmp_path: Path) -> None:
    algorithm = build(settings_of(tmp_path, worker_timeout_s=1.0))
    messages: list[str] = []
    algorithm.fleet.on_message = messages.append
    algorithm.train()
    (tmp_path / faulty_envs.HANGS).touch()
    train_until(
        algorithm,
        lambda: algorithm.fleet.num_restarts == 1 and len(algorithm.fleet.ready) == 2,
    )
    assert algorithm.env_steps == 128 * algorithm.iteration
    [message] = messages
    assert "is lost (none of its environments finished a step or reset in 1 s; raise " in message
    assert "resources.worker_timeout_s" in message
    assert len(worker_pids()) == 2


def test_slow_environments_are_no_hung_workers_and_no_row_is_faster_than_they_are() -> None:
    settings = settings_of(worker_timeout_s=1.0, num_envs_per_env_runner=8)
    changes = {
        "env": EnvSettings(id="tests.support.faulty_envs:Slow", max_episode_steps=50),
        "stop": settings.stop.model_copy(update={"iterations": 2}),
    }
    messages: list[str] = []
    trainer = Trainer(settings.model_copy(update=changes), messages.append)
    try:
        rows = [trainer.iterate() for _ in range(2)]
    finally:
        trainer.close()
    assert (messages, rows[-1]["num_worker_restarts"]) == ([], 0)
    assert rows[-1]["num_env_steps_sampled_lifetime"] == 2 * 128
    fastest = 2 / faulty_envs.SLOW_STEP_S  # of two workers, which step one env at a time
    assert all(row["env_steps_per_s"] <= fastest for row in rows)


@pytest.mark.parametrize(
    ("workers", "fault", "error"),
    [
        (0, faulty_envs.RAISES, "RuntimeError: the motor is stuck"),
        (2, faulty_envs.NAN, "observation has NaN at index 0"),
    ],
)
def test_an_episode_that_fails_is_dropped_and_told(
    workers: int, fault: str, error: str, tmp_path: Path
) -> None:
    messages: list[str] = []
    trainer = Trainer(settings_of(tmp_path, num_env_runners=workers), messages.append)
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
    [message] = messages
    assert message.startswith("1 episode(s) failed in the environment and were dropped; the last: ")
    assert message.endswith(error)
    again = Trainer(settings_of(tmp_path, num_env_runners=workers))
    try:
        again.restore(tmp_path)
        assert again.iterate()["num_failed_episodes"] == 1
    finally:
        again.close()


def test_a_worker_that_raises_is_replaced_and_a_second_one_ends_the_run(build: Any) -> None:
    algorithm = build(settings_of())
    algorithm.train()
    messages: list[str] = []
    algorithm.fleet.on_message = messages.append
    ray.get(algorithm.fleet.ready[1].actor.apply.remote(_raises_from_now_on))
    train_until(algorithm, lambda: list(algorithm.fleet.ready) == [2, 3])
    assert algorithm.env_steps == 128 * algorithm.iteration
    assert messages == ["rollout worker 1 is lost (MemoryError: too little); 1 left"]
    algorithm.fleet.call("apply", _raises_from_now_on)
    with pytest.raises(
        TrainingFailedError, match=r"worker \d failed: MemoryError: too little; look"
    ):
        train_until(algorithm, lambda: False)


def _raises_from_now_on(worker: Any) -> None:
    def act(history: Any, masks: Any) -> Any:
        raise MemoryError("too little")

    worker._vector_sampler._open_policy = lambda num_actions: act


def test_workers_that_were_ended_while_they_sampled_do_not_come_back(build: Any) -> None:
    algorithm = build(settings_of())
    algorithm.train()
    sampling = Background(lambda: [algorithm._sample() for _ in range(1000)])
    algorithm._next_samples = sampling
    algorithm.cleanup()
    with pytest.raises(TrainingFailedError, match="the rollout workers were stopped"):
        sampling.result()
    assert (algorithm.fleet.ready, algorithm.fleet.num_starting) == ({}, 0)
    deadline = time.monotonic() + PATIENCE_S
    while worker_pids():
        assert time.monotonic() < deadline


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
    with pytest.raises(WorkersLostError, match=r"returned samples for \d+ s .*--resume"):
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


def test_a_resumed_run_goes_on_with_as_many_workers_as_it_had(tmp_path: Path) -> None:
    changes = {"max_env_runners": 2, "num_env_runners": 1, "down_delay_iterations": 1}
    policy = "tests.support.scaling:{}"
    messages: list[str] = []
    trainer = Trainer(
        settings_of(**changes, autoscaling_policy=policy.format("six")), messages.append
    )
    try:
        row = trainer.iterate()
        trainer.save(tmp_path)
    finally:
        trainer.close()
    assert row["scaling_reason"].startswith("1 to 2: ")
    assert messages == [f"rollout workers: {row['scaling_reason']}"]
    resumed = Trainer(settings_of(**changes, autoscaling_policy=policy.format("one")))
    try:
        resumed.restore(tmp_path)
        assert resumed.algo.fleet is not None
        assert resumed.algo.fleet.size == 2
        row = resumed.iterate()
    finally:
        resumed.close()
    assert row["num_env_runners_target"] == 1
