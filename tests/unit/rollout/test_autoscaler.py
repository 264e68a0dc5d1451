"""What a decision may be, whatever the policy asks for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docs.examples.scaling_policy import by_schedule
from rl_service.common.errors import SettingsError
from rl_service.config.settings import ResourceSettings
from rl_service.rollout.autoscaler import Autoscaler, check_policy
from rl_service.rollout.throughput import Load
from tests.support.scaling import STEADY

OWN = "tests.unit.rollout.test_autoscaler:asks_for_env_steps"


def asks_for_env_steps(load: Load) -> int:
    """Lets a test choose the answer."""
    return load.env_steps


def answers_nonsense(load: Load) -> str:
    return "many"


def fails(load: Load) -> int:
    raise ValueError("no\nidea")


def explains(load: Load) -> tuple[int, str]:
    return 3, "three is best"


def own(function: str = OWN, **more: object) -> Autoscaler:
    given = {
        "autoscaling_policy": function,
        "max_env_runners": 8,
        "down_delay_iterations": 1,
        "max_scaling_step": 8,
        **more,
    }
    return Autoscaler(ResourceSettings.model_validate(given), 2)


def asking(count: int, **more: object) -> Load:
    return STEADY._replace(env_steps=count, **more)  # type: ignore[arg-type]


def targets(scaler: Autoscaler, *counts: int) -> list[int]:
    return [scaler.decide(asking(count)).num_workers for count in counts]


def test_the_bounds_hold_and_are_told() -> None:
    scaler = own(min_env_runners=2)
    assert scaler.decide(asking(99)) == (
        8,
        f"2 to 8: {OWN} says 99; at most 8 are allowed",
    )
    assert scaler.decide(asking(-5)).num_workers == 2


def test_delays_count_iterations_in_a_row() -> None:
    scaler = own(up_delay_iterations=2, down_delay_iterations=3)
    assert targets(scaler, 5, 2, 5, 5) == [2, 2, 2, 5]
    assert targets(scaler, 4, 4, 5, 4, 4, 4) == [5, 5, 5, 5, 5, 4]


def test_a_change_is_no_larger_than_a_step() -> None:
    assert targets(own(max_scaling_step=2), 7, 7, 7, 1, 1) == [4, 6, 7, 5, 3]


def test_what_was_just_given_back_does_not_return_at_once() -> None:
    scaler = own(down_delay_iterations=3)
    assert targets(scaler, 6, 5, 5, 5) == [6, 6, 6, 5]
    assert targets(scaler, 6, 6, 6) == [5, 5, 6]
    assert targets(scaler, 5, 5, 5, 7) == [6, 6, 5, 7]  # more than before is a new load


def test_nothing_is_asked_for_that_cannot_be_placed() -> None:
    scaler = own()
    full = asking(8, max_placeable=4)
    assert scaler.decide(full).num_workers == 4
    assert "the cluster has room for 4" in scaler.decide(full).reason
    assert scaler.decide(asking(4, max_placeable=3, num_alive=2)).num_workers == 3
    assert scaler.decide(asking(3, max_placeable=0, num_alive=3)).num_workers == 3


def test_what_left_for_want_of_room_returns_with_it() -> None:
    scaler = own(down_delay_iterations=9)
    assert targets(scaler, 6) == [6]
    assert scaler.decide(asking(6, max_placeable=4, num_alive=4)).num_workers == 4
    assert scaler.decide(asking(6, max_placeable=6)).num_workers == 6


def test_the_minimum_is_asked_for_even_without_room() -> None:
    assert own(min_env_runners=2).decide(asking(8, max_placeable=0, num_alive=0))[0] == 2


def test_spent_worker_hours_leave_the_minimum_at_once() -> None:
    scaler = own(max_worker_hours=2.0, down_delay_iterations=9)
    assert scaler.decide(asking(8, worker_hours=1.99)).num_workers == 8
    assert scaler.decide(asking(8, worker_hours=2.0)) == (
        1,
        "8 to 1: 2 of 2 worker-hours are spent, the run continues with 1",
    )


def test_while_workers_start_only_what_two_iterations_ask_for_is_added() -> None:
    scaler = own()
    assert scaler.decide(asking(4)).num_workers == 4
    counts = [scaler.decide(asking(n, num_starting=2)).num_workers for n in (7, 5, 6, 8)]
    assert counts == [4, 5, 5, 6]


@pytest.mark.parametrize(
    ("function", "told"),
    [("answers_nonsense", "TypeError: it returned 'many'"), ("fails", "ValueError: no idea")],
)
def test_a_function_that_fails_keeps_the_number_and_is_told_once(function: str, told: str) -> None:
    scaler = own(f"tests.unit.rollout.test_autoscaler:{function}")
    first, second = scaler.decide(STEADY), scaler.decide(STEADY)
    assert (first.num_workers, second.num_workers) == (2, 2)
    assert told in first.reason
    assert "\n" not in first.reason
    assert second.reason.endswith("fails as before")


def test_a_function_may_give_its_reason() -> None:
    scaler = own("tests.unit.rollout.test_autoscaler:explains")
    assert scaler.decide(STEADY) == (3, "2 to 3: three is best")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such_module_x:f", "module no_such_module_x cannot be imported"),
        (
            "tests.support.scaling:Trainin",
            "tests.support.scaling has no function Trainin; did you mean Training?",
        ),
        ("tests.support.scaling:STEADY", "tests.support.scaling has no function STEADY"),
    ],
)
def test_a_function_that_is_not_there_is_one_line(name: str, reason: str) -> None:
    resources = ResourceSettings(autoscaling_policy=name, max_env_runners=4)
    [problem] = check_policy(resources)
    assert problem.startswith(f"resources.autoscaling_policy={name}: {reason}")
    with pytest.raises(SettingsError):
        Autoscaler(resources, 2)


def test_the_example_follows_its_schedule() -> None:
    counts = [by_schedule(asking(steps))[0] for steps in (0, 49_999, 50_000, 90_000)]
    assert counts == [1, 1, 3, 3]
    scaler = own("docs.examples.scaling_policy:by_schedule")
    reason = "2 to 3: the schedule says 3 from 50000 env steps on"
    assert scaler.decide(asking(60_000)) == (3, reason)


@settings(deadline=None)
@given(
    asked=st.lists(st.tuples(st.integers(-3, 20), st.integers(0, 12), st.integers(0, 3))),
    least=st.integers(1, 2),
    step=st.integers(1, 4),
    up=st.integers(1, 3),
    down=st.integers(1, 6),
)
def test_no_sequence_of_wishes_breaks_the_limits(
    asked: list[tuple[int, int, int]], least: int, step: int, up: int, down: int
) -> None:
    scaler = own(
        min_env_runners=least,
        max_scaling_step=step,
        up_delay_iterations=up,
        down_delay_iterations=down,
    )
    before = max(2, least)
    for count, room, starting in asked:
        load = asking(count, max_placeable=room, num_starting=starting)
        after, reason = scaler.decide(load)
        assert least <= after <= min(8, max(room, load.num_alive, least))
        assert after - before <= step
        assert reason
        assert "\n" not in reason
        before = after


@settings(deadline=None)
@given(asked=st.lists(st.integers(1, 8), max_size=60), down=st.integers(2, 6))
def test_no_sequence_of_wishes_makes_it_flap(asked: list[int], down: int) -> None:
    """A change down comes a whole delay after any other; up again, only above where it was."""
    scaler, last_change, last_down, came_from = own(down_delay_iterations=down), -1, -99, 0
    before = 2
    for i, count in enumerate(asked):
        after = scaler.decide(asking(count)).num_workers
        if after < before:
            assert i - last_change >= down
            last_down, came_from = i, before
        if after > before and i - last_down < down:
            assert after > came_from
        if after != before:
            last_change = i
        before = after
