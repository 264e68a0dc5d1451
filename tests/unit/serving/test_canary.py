"""A trial takes its share, and ends well or badly."""

from __future__ import annotations

import pytest

from rl_service.serving.canary import MIN_COMPARED, MIN_REQUESTS, MIN_SECONDS, Canary


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
    canary = Canary(2, 0.1, clock=clock)
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


@pytest.mark.parametrize(
    ("good_before", "verdict"), [(98, "errors"), (99, "errors"), (100, "passed")]
)
def test_a_failure_within_the_first_hundred_ends_it(good_before: int, verdict: str) -> None:
    clock = Clock()
    canary = Canary(2, 1.0, clock=clock)
    for _ in range(good_before):
        canary.answered(2, 0.001)
    canary.failed()
    clock.now = MIN_SECONDS
    assert canary.verdict() == verdict


@pytest.mark.parametrize(("new_ms", "verdict"), [(24.0, "running"), (26.0, "slow")])
def test_with_all_requests_it_is_compared_with_what_was_before(new_ms: float, verdict: str) -> None:
    canary = Canary(2, 1.0, before=[0.010] * MIN_COMPARED)
    for _ in range(MIN_COMPARED):
        canary.answered(2, new_ms / 1000.0)
    assert canary.verdict() == verdict


@pytest.mark.parametrize(
    ("num_old", "verdict"), [(MIN_COMPARED - 1, "slow"), (MIN_COMPARED, "running")]
)
def test_what_the_old_version_does_meanwhile_counts_more(num_old: int, verdict: str) -> None:
    """All answers take longer than before: the machine has more to do."""
    canary = Canary(2, 0.5, before=[0.001] * MIN_COMPARED)
    for _ in range(num_old):
        canary.answered(1, 0.050)
    for _ in range(MIN_COMPARED):
        canary.answered(2, 0.050)
    assert canary.verdict() == verdict


def test_a_slow_version_ends_it() -> None:
    canary = Canary(2, 0.1)
    for _ in range(40):
        canary.answered(1, 0.001)
        canary.answered(2, 0.020)
    assert canary.verdict() == "slow"
