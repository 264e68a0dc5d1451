"""TensorBoard reads back what was logged."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rl_service.config.settings import Settings, TrackingSettings
from rl_service.training.run import Run
from rl_service.training.tracking import build_trackers


@pytest.fixture
def run(tmp_path: Path) -> Run:
    tracking = TrackingSettings(output_dir=str(tmp_path), ray_metrics=False)  # Ray may be running
    return Run.create(Settings(tracking=tracking), command=[])


def train(run: Run, iterations: range, episode_return: float) -> None:
    """What a run does with its trackers: 100 env steps an iteration."""
    (tracker,) = build_trackers(run, run.settings)
    for iteration in iterations:
        row = {
            "training_iteration": iteration,
            "num_env_steps_sampled_lifetime": 100 * iteration,
            "episode_return_mean": episode_return + iteration,
            "evaluation/episode_return_mean": math.nan,
        }
        run.append_progress(row)
        tracker.log(row, 100 * iteration)
    tracker.finish("finished")


def curve(run: Run, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(run.path))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_numbers_stand_at_their_env_steps(run: Run) -> None:
    train(run, range(1, 4), episode_return=0.0)
    assert curve(run, "episode_return_mean") == [(100, 1.0), (200, 2.0), (300, 3.0)]


def test_numbers_without_a_value_are_left_out(run: Run) -> None:
    train(run, range(1, 3), episode_return=0.0)
    with pytest.raises(KeyError):
        curve(run, "evaluation/episode_return_mean")


def test_a_resumed_run_replaces_the_steps_that_it_repeats(run: Run) -> None:
    train(run, range(1, 5), episode_return=0.0)
    run.rewind_progress(2)
    train(run, range(3, 5), episode_return=10.0)
    expected = [(100, 1.0), (200, 2.0), (300, 13.0), (400, 14.0)]
    assert curve(run, "episode_return_mean") == expected


def test_tensorboard_can_be_off(tmp_path: Path) -> None:
    settings = Settings(tracking=TrackingSettings(output_dir=str(tmp_path), tensorboard=False))
    assert build_trackers(Run.create(settings, command=[]), settings) == []
