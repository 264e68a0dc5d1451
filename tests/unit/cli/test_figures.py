"""Numbers as the console shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_service.cli.figures import duration, evaluation_return, figure, short_path, sparkline, speed


def test_large_numbers_are_grouped_and_unknown_ones_are_a_dash() -> None:
    assert figure(307200) == "307,200"
    assert figure(-12.345, 1) == "-12.3"
    assert figure(None) == "–"


def test_the_speed_of_slow_environments_is_not_0() -> None:
    assert [speed(s) for s in (1903.2, 12.4, 4.26, 0.42, 0.0, None)] == [
        "1,903",
        "12",
        "4.3",
        "0.42",
        "0",
        "–",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (65, "1:05"), (3700, "1:01:40"), (None, "–")]
)
def test_durations_read_like_a_clock(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_an_evaluation_shows_its_deviation_where_it_has_one() -> None:
    row = {"evaluation/episode_return_mean": 81.34, "evaluation/episode_return_std": 60.21}
    assert evaluation_return(row) == "81.3 ± 60.2"
    assert evaluation_return({"evaluation/episode_return_mean": 81.34}) == "81.3"


def test_a_rising_curve_rises() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], width=8) == "▁▂▃▄▅▆▇█"


def test_a_long_curve_is_averaged_into_the_width() -> None:
    assert sparkline([0, 2, 9, 11, 0, 2], width=3) == "▁█▁"
    assert len(sparkline(list(range(1000)), width=24)) == 24


def test_a_flat_and_an_empty_curve_can_be_drawn() -> None:
    assert sparkline([5.0, 5.0], width=8) == "▁▁"
    assert sparkline([], width=8) == ""


def test_paths_are_short_from_here_and_safe_to_paste(in_tmp_path: Path) -> None:
    assert short_path(in_tmp_path / "runs" / "a") == "runs/a"
    assert short_path("/elsewhere/b") == "/elsewhere/b"
    assert short_path(in_tmp_path / "my runs" / "a") == "'my runs/a'"
