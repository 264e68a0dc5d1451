"""What is reported of trials that start again and of a storage that fails; signals."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import cloudpickle
from ray.exceptions import ActorDiedError, RayTaskError
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from rl_service.common.errors import (
    LearnerLostError,
    OutputError,
    TrainingFailedError,
    WorkersLostError,
)
from rl_service.common.storage import Storage
from rl_service.tuning import ray_tune
from rl_service.tuning.observer import TrialTrackers
from rl_service.tuning.ray_tune import Stopping, TuneCallback, will_recur
from rl_service.tuning.storage import experiment_storage
from tests.support.tuning import Watcher, small_plan


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


@pytest.fixture
def callback(tmp_path: Path, watcher: Watcher) -> TuneCallback:
    space = small_plan(tmp_path).space
    trackers = TrialTrackers(space, tmp_path, watcher.on_message)
    storage = experiment_storage(f"{tmp_path}/one")
    return TuneCallback(watcher, trackers, space, FIFOScheduler(), set(), storage, lambda: False)


def failed(folder: Path, error: Exception) -> Any:
    """A trial as Tune has it when it will start again: pending, its error in a file."""
    file = folder / "error.pkl"
    file.write_bytes(cloudpickle.dumps(error))
    return SimpleNamespace(trial_id="7", status=Trial.PENDING, pickled_error_file=str(file))


NAN = TrainingFailedError("seed 3 has no score: its return is NaN")


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (ActorDiedError(), "lost its process or node"),
        (RayTaskError("step", "pages of a stack", ActorDiedError()), "lost its process or node"),
        (RayTaskError("step", "pages of a stack", NAN), f"failed ({NAN})"),
    ],
)
def test_a_trial_that_starts_again_is_told_with_why(
    callback: TuneCallback, watcher: Watcher, tmp_path: Path, error: Exception, what: str
) -> None:
    callback.on_trial_recover(1, [], failed(tmp_path, error))
    assert watcher.messages == [f"trial 7 {what}; it starts again from its last checkpoint"]


def test_a_trial_that_lost_a_process_is_tried_again() -> None:
    assert will_recur(NAN)
    assert not any(map(will_recur, (LearnerLostError("x"), WorkersLostError("x"), None)))


def test_a_storage_that_fails_for_a_while_costs_copies_and_is_told_once(
    callback: TuneCallback, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Storage] = []

    def fail(storage: Storage) -> None:
        tries.append(storage)
        if len(tries) < 3:
            raise OutputError("s3://bucket cannot be written: slow down")

    monkeypatch.setattr(ray_tune, "back_up", fail)
    monkeypatch.setattr(ray_tune, "_SNAPSHOT_PERIOD_S", -1.0)
    for iteration in range(4):
        callback.on_step_begin(iteration, [])
    assert len(tries) == 4
    assert watcher.messages == [
        "no copy of the snapshot for now: s3://bucket cannot be written: slow down"
    ]


def test_a_request_is_noted_and_tunes_own_handler_does_not_stay() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    with Stopping() as stopping:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # as Tune does
        os.kill(os.getpid(), signal.SIGTERM)
        while not stopping.requested:
            time.sleep(0.001)
    assert [signal.getsignal(number) for number in numbers] == before
