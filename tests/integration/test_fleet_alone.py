"""The fleet by itself, with actors that start in no time and do what a file says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from rl_service.algorithms.sampling import BatchSampler
from rl_service.common.errors import WorkersLostError
from rl_service.common.metrics import ENV_STEPS
from rl_service.config.settings import ResourceSettings
from rl_service.rollout import starting
from rl_service.rollout.fleet import Fleet, FleetState
from rl_service.runtime import ray_session
from rl_service.training.trainer import Scaling
from tests.support.plain_workers import FAILS, HANGS, Plain
from tests.support.small_runs import small_settings

pytestmark = pytest.mark.usefixtures("local_ray")

PATIENCE_S = 60.0


class Fixture:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fleets: list[Fleet] = []
        self.messages: list[str] = []
        self.reserved: list[bool] = []

    def fleet(
        self,
        size: int,
        *,
        num_reserved: int = 9,
        lost_timeout_s: float = 60.0,
        num_cpus: float = 0.25,
    ) -> Fleet:
        actor_class = ray.remote(num_cpus=num_cpus)(Plain)

        def spawn(index: int, *, is_reserved: bool) -> Any:
            self.reserved.append(is_reserved)
            return actor_class.remote(self.folder, index)

        fleet = Fleet(spawn, size, num_reserved, lost_timeout_s)
        fleet.on_message = self.messages.append
        self.fleets.append(fleet)
        return fleet


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Fixture]:
    fixture = Fixture(tmp_path)
    yield fixture
    for fleet in fixture.fleets:
        fleet.stop()


def poll_until(fleet: Fleet, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        fleet.poll()
        time.sleep(0.02)


def test_those_that_fail_together_wait_together_and_count_once_they_are_back(
    plain: Fixture,
) -> None:
    fleet = plain.fleet(3)
    fleet.start(3)
    for index in fleet.ready:
        fleet.has_sampled(index)
    (plain.folder / FAILS).touch()
    for index in list(fleet.ready):
        fleet.lose(index, "test")
    poll_until(fleet, lambda: any(m.endswith("next try in 2 s") for m in plain.messages))
    waits = [float(m.split()[-2]) for m in plain.messages if "did not start" in m]
    assert waits[0] == max(waits[: waits.index(2.0)]) == 1.0
    assert fleet.num_restarts == 0
    (plain.folder / FAILS).unlink()
    poll_until(fleet, lambda: len(fleet.ready) == 3)
    assert fleet.num_restarts == 3


def test_a_worker_that_was_lost_and_is_not_wanted_any_more_is_not_counted(plain: Fixture) -> None:
    fleet = plain.fleet(2)
    fleet.start(2)
    fleet.lose(1, "test")
    fleet.resize(1)
    fleet.resize(2)
    poll_until(fleet, lambda: len(fleet.ready) == 2)
    assert fleet.num_restarts == 0


def test_a_start_that_stands_still_is_given_up(
    plain: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "_LOOK_S", 0.2)
    fleet = plain.fleet(1, lost_timeout_s=1.0)
    fleet.start(1)
    monkeypatch.setattr(fleet._starts, "_timeout_s", 5.0)
    (plain.folder / HANGS).touch()
    fleet.resize(2)
    assert fleet.count_held() >= 1
    poll_until(fleet, lambda: bool(plain.messages))
    assert plain.messages[0] == (
        "rollout worker 2 did not start (it has its CPUs and is not ready after 5 s); "
        "next try in 0.5 s"
    )
    (plain.folder / HANGS).unlink()
    poll_until(fleet, lambda: len(fleet.ready) == 2)


def test_a_start_that_waits_for_room_is_left_alone(
    plain: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "_LOOK_S", 0.0)
    monkeypatch.setattr(starting, "SHORTEST_START_TIMEOUT_S", 5.0)
    fleet = plain.fleet(2, lost_timeout_s=1.0, num_cpus=1.0)
    fleet.start(2)
    fleet.resize(3)
    until = time.monotonic() + 6.0
    while time.monotonic() < until:
        fleet.poll()
    assert (fleet.num_starting, fleet.count_held(), plain.messages) == (1, 2, [])


def test_a_checkpoint_keeps_the_state_of_those_that_are_not_back_yet(plain: Fixture) -> None:
    fleet = plain.fleet(1)
    states = {index: {"of": index} for index in (4, 7)}
    fleet.restore(FleetState(size=2, next_index=9, workers=dict(states)), size=2)
    fleet.start(2)
    assert fleet.state().workers == states
    fleet.resize(1)
    (plain.folder / HANGS).touch()
    fleet.restore(FleetState(size=2, next_index=9, workers=dict(states)), size=1)
    assert fleet.state().workers == states
    (plain.folder / HANGS).unlink()
    fleet.start(1)
    fleet.resize(2)
    assert fleet.state().workers == states
    poll_until(fleet, lambda: list(fleet.ready) == [4, 7])
    assert (fleet.state().workers, fleet.state().next_index) == (states, 9)


def test_no_more_workers_are_asked_for_than_find_room(
    plain: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_session, "_LIFETIME_S", 0.2)
    resources = ResourceSettings(
        num_env_runners=1,
        max_env_runners=6,
        num_cpus_per_env_runner=0.5,
        autoscaling_policy="tests.support.scaling:six",
    )
    fleet = plain.fleet(1, num_cpus=0.5)
    fleet.start(1)
    scaling = Scaling(resources, fleet)
    times = ("sample_time_s", "learn_time_s", "learn_actor_time_s", "iteration_time_s")
    row = {**dict.fromkeys(times, 1.0), ENV_STEPS: 0}
    rows = []
    while len(rows) < 60:
        rows.append(scaling.rescale(row | {"training_iteration": len(rows) + 1}, 1))
        fleet.poll()
        time.sleep(0.05)
    targets = [each["num_env_runners_target"] for each in rows]
    assert targets == [3] + [4] * 59  # two at a time
    assert rows[-1]["scaling_reason"].endswith("the cluster has room for 4")
    poll_until(fleet, lambda: len(fleet.ready) == 4)
    assert fleet.num_starting == 0


def test_workers_that_all_die_while_they_sample_end_the_run(plain: Fixture, build: Any) -> None:
    algorithm = build(small_settings())
    fleet = plain.fleet(2, lost_timeout_s=15.0)  # each is to die twice, on a busy machine too
    fleet.start(2)
    sampler = BatchSampler(algorithm.env_runner, fleet, None, algorithm.settings)
    with pytest.raises(WorkersLostError, match=r"has returned samples for \d+ s"):
        sampler.sample(0)
    lost = [m for m in plain.messages if "is lost (its process died)" in m]
    assert len(lost) > 2
    assert {m.rpartition("; ")[2] for m in lost} >= {"next try in 1 s", "next try in 2 s"}


def test_reserved_places_are_filled_first_and_left_last(plain: Fixture) -> None:
    fleet = plain.fleet(3, num_reserved=2)
    fleet.start(3)
    assert plain.reserved == [True, True, False]
    fleet.resize(2)
    assert list(fleet.ready) == [1, 2]
    fleet.lose(1, "test")
    fleet.resize(3)
    poll_until(fleet, lambda: len(fleet.ready) == 3)
    assert plain.reserved[3:] == [True, False]
    (plain.folder / HANGS).touch()
    fleet.lose(2, "test")
    poll_until(fleet, lambda: fleet.num_starting == 1)
    fleet.resize(2)
    assert (list(fleet.ready), fleet.num_starting) == ([4], 1)


def test_hours_count_whoever_was_there(plain: Fixture) -> None:
    fleet = plain.fleet(4)
    fleet.start(4)
    started = time.monotonic()
    fleet.state()
    before = fleet.worker_hours
    time.sleep(0.2)
    fleet.resize(1)
    with_4, resized = fleet.worker_hours - before, time.monotonic()
    assert 4 * 0.2 <= with_4 * 3600 <= 4 * (resized - started)
    time.sleep(0.2)
    fleet.lose(next(iter(fleet.ready)), "test")
    with_1 = fleet.worker_hours - before - with_4
    assert 0.2 <= with_1 * 3600 <= time.monotonic() - started
