"""Runs as curves, and several curves as a mean with a band: numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rl_service.common.errors import CheckpointError
from rl_service.tuning.curves import ENV_STEPS, Curve, band_of, curves_of


def curve(steps: list[float], values: list[float]) -> Curve:
    return Curve(np.array(steps), np.array(values))


def test_mean_lowest_and_highest_at_all_points_that_the_runs_share() -> None:
    band = band_of([curve([0, 100, 200], [0, 10, 40]), curve([50, 150, 300], [25, 5, 20])])
    assert band is not None
    # At 50..200; by hand: the first is 5, 10, 25, 40 there and the second 25, 15, 5, 10.
    assert band.env_steps.tolist() == [50, 100, 150, 200]
    assert band.mean.tolist() == [15, 12.5, 15, 25]
    assert band.low.tolist() == [5, 10, 5, 10]
    assert band.high.tolist() == [25, 15, 25, 40]


def test_one_run_is_its_own_band() -> None:
    band = band_of([curve([1, 2], [3, 5])])
    assert band is not None
    assert band.mean.tolist() == band.low.tolist() == band.high.tolist() == [3, 5]


def test_runs_that_share_no_steps_have_no_band() -> None:
    assert band_of([curve([1, 2], [0, 0]), curve([3, 4], [0, 0])]) is None


def test_runs_that_share_one_point_have_a_band_there() -> None:
    band = band_of([curve([1, 2], [0, 4]), curve([2, 3], [2, 0])])
    assert band is not None
    assert (band.env_steps.tolist(), band.mean.tolist()) == ([2], [3])


def test_iterations_without_a_value_are_not_points() -> None:
    rows = [
        {ENV_STEPS: 10, "episode_return_mean": None, "entropy": 1},
        {ENV_STEPS: 20, "episode_return_mean": 5.0, "entropy": 2, "of another release": "x"},
        {ENV_STEPS: 30, "episode_return_mean": 7.0},
    ]
    found = curves_of(rows, "progress.jsonl")
    assert set(found) == {ENV_STEPS, "episode_return_mean", "entropy"}
    assert found["episode_return_mean"].env_steps.tolist() == [20, 30]
    assert found["episode_return_mean"].values.tolist() == [5, 7]
    assert found["entropy"].env_steps.tolist() == [10, 20]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, f"{ENV_STEPS} is missing or does not grow"),
        ({ENV_STEPS: 10}, f"{ENV_STEPS} is missing or does not grow"),
        ({ENV_STEPS: "20"}, f"{ENV_STEPS} is '20'"),
        ({ENV_STEPS: 20, "entropy": float("nan")}, "entropy is nan"),
        ({ENV_STEPS: 20, "entropy": [1]}, r"entropy is \[1\]"),
    ],
)
def test_a_row_that_is_no_iteration_is_named(row: dict[str, object], said: str) -> None:
    with pytest.raises(CheckpointError, match=rf"^p\.jsonl line 2 is damaged: {said}; remove"):
        curves_of([{ENV_STEPS: 10}, row], "p.jsonl")
