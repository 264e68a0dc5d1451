"""What is told of trials that start again, and of a storage that fails for a while."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import cloudpickle
from ray.exceptions import ActorDiedError, RayTaskError
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from rl_service.common.errors import OutputError, TrainingFailedError
from rl_service.tuning import watch as watch_module
from rl_service.tuning.storage import ExperimentStorage
from rl_service.tuning.trackers import TrialTrackers
from rl_service.tuning.watch import Watch
from tests.support.tuning import Watcher, small_plan


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


@pytest.fixture
def watch(tmp_path: Path, watcher: Watcher) -> Watch:
    space = small_plan(tmp_path).space
    trackers = TrialTrackers(space, tmp_path, watcher.on_message)
    storage = ExperimentStorage.create(str(tmp_path), "one")
    return Watch(watcher, trackers, space, FIFOScheduler(), set(), storage, lambda: False)


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
    watch: Watch, watcher: Watcher, tmp_path: Path, error: Exception, what: str
) -> None:
    watch.on_trial_recover(1, [], failed(tmp_path, error))
    assert watcher.messages == [f"trial 7 {what}; it starts again from its last checkpoint"]


def test_a_storage_that_fails_for_a_while_costs_copies_and_is_told_once(
    watch: Watch, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[ExperimentStorage] = []

    def fail(storage: ExperimentStorage) -> None:
        tries.append(storage)
        if len(tries) < 3:
            raise OutputError("s3://bucket cannot be written: slow down")

    monkeypatch.setattr(watch_module, "back_up", fail)
    monkeypatch.setattr(watch_module, "_BACKUP_PERIOD_S", -1.0)
    for iteration in range(4):
        watch.on_step_begin(iteration, [])
    assert len(tries) == 4
    assert watcher.messages == [
        "no copy of the snapshot for now: s3://bucket cannot be written: slow down"
    ]
