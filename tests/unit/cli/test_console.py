"""Numbers as the console shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_service.cli.console import duration, figure, mean_std, short_path, speed


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


def test_a_mean_shows_its_deviation_if_it_has_one() -> None:
    assert mean_std(81.34, 60.21) == "81.3 ± 60.2"
    assert mean_std(81.34, None) == "81.3"


def test_paths_are_short_from_here_and_safe_to_paste(in_tmp_path: Path) -> None:
    assert short_path(in_tmp_path / "runs" / "a") == "runs/a"
    assert short_path("/elsewhere/b") == "/elsewhere/b"
    assert short_path(in_tmp_path / "my runs" / "a") == "'my runs/a'"
