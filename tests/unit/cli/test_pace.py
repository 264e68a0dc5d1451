"""Share done and time left, on a clock that the test sets."""

from __future__ import annotations

import pytest

from rl_service.cli import display
from rl_service.cli.display import Pace
from rl_service.config.algorithms import PPOSettings
from rl_service.config.settings import Settings, StopSettings


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(display, "time", clock)
    return clock


def settings(**stop: float | None) -> Settings:
    return Settings(stop=StopSettings(**stop), algorithm=PPOSettings(train_batch_size=1000))


def row(iteration: int) -> dict[str, float]:
    return {
        "training_iteration": iteration,
        "num_env_steps_sampled_lifetime": 1000 * iteration,
        "iteration_time_s": 3.0,
        "time_total_s": 3.0 * iteration,
    }


def test_nothing_is_known_before_the_first_iteration() -> None:
    pace = Pace(settings(), 100)
    assert pace.share_done is None
    assert pace.seconds_left is None


def test_the_first_iteration_is_taken_at_its_own_time(clock: Clock) -> None:
    pace = Pace(settings(), 100)
    pace.update(row(1))
    assert pace.share_done == 0.01
    assert pace.seconds_left == pytest.approx(99 * 3.0)


def test_evaluations_between_iterations_count(clock: Clock) -> None:
    pace = Pace(settings(), 100)
    for iteration in (1, 2, 3):
        pace.update(row(iteration))
        clock.now += 5.0
    assert pace.seconds_left == pytest.approx(97 * 5.0 - 5.0)


def test_the_time_left_runs_down_between_rows_and_not_below_zero(clock: Clock) -> None:
    pace = Pace(settings(), 2)
    pace.update(row(1))
    clock.now += 1.0
    assert pace.seconds_left == pytest.approx(2.0)
    clock.now += 60.0
    assert pace.seconds_left == 0.0


def test_the_nearest_limit_counts(clock: Clock) -> None:
    pace = Pace(settings(env_steps=20_000, time_s=33.0), 100)
    pace.update(row(10))
    assert pace.share_done == pytest.approx(30.0 / 33.0)
    assert pace.seconds_left == pytest.approx(3.0)


def test_env_steps_are_turned_into_iterations(clock: Clock) -> None:
    pace = Pace(settings(env_steps=20_000), None)
    pace.update(row(10))
    assert pace.share_done == 0.5
    assert pace.seconds_left == pytest.approx(10 * 3.0)


def test_a_run_that_ends_by_its_return_alone_has_no_time_left(clock: Clock) -> None:
    pace = Pace(settings(iterations=None, episode_return_mean=200.0), None)
    pace.update(row(10))
    assert pace.share_done is None
    assert pace.seconds_left is None
