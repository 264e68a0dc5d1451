"""A trial takes its share, and ends well or badly."""

from __future__ import annotations

import pytest

from rl_service.serving.canary import MIN_REQUESTS, MIN_SECONDS, Canary


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 1.0])
def test_it_takes_its_share_evenly(share: float) -> None:
    canary = Canary(2, share)
    assert sum(canary.takes_next() for _ in range(1000)) == pytest.approx(1000 * share, abs=1)


def test_it_passes_after_enough_requests_and_time() -> None:
    clock = Clock()
    canary = Canary(2, 0.1, clock)
    for _ in range(MIN_REQUESTS):
        canary.answered(2, 0.001)
        canary.answered(1, 0.001)
    assert canary.verdict() == "running"
    clock.now = MIN_SECONDS
    assert canary.verdict() == "passed"


def test_an_early_failure_ends_it() -> None:
    canary = Canary(2, 0.1)
    canary.answered(2, 0.001)
    canary.failed()
    assert canary.verdict() == "errors"


def test_one_failure_of_many_does_not() -> None:
    canary = Canary(2, 0.1)
    for _ in range(200):
        canary.answered(2, 0.001)
    canary.failed()
    assert canary.verdict() == "running"


def test_a_slow_version_ends_it() -> None:
    canary = Canary(2, 0.1)
    for _ in range(40):
        canary.answered(1, 0.001)
        canary.answered(2, 0.020)
    assert canary.verdict() == "slow"
