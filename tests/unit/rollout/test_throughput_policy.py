"""What the measured times ask for: known answers, and trainings that change under the policy."""

from __future__ import annotations

import math

import pytest

from rl_service.config.settings import ResourceSettings
from rl_service.rollout.throughput import SampleTimes, ThroughputPolicy
from tests.support.scaling import STEADY, Training

SEEDS = range(5)


def resources(**more: object) -> ResourceSettings:
    return ResourceSettings.model_validate(
        {"num_env_runners": 1, "max_env_runners": 16, "max_scaling_step": 16, **more}
    )


def measured(*batches: tuple[int, float]) -> SampleTimes:
    times = SampleTimes()
    for iteration, (num_workers, time_s) in enumerate(batches, start=1):
        times.add(iteration, num_workers, time_s)
    return times


def test_one_count_alone_is_taken_to_share_out_all_its_time() -> None:
    model = measured((2, 9.0), (2, 4.0)).model()
    assert model.fixed_s == pytest.approx(0.0)
    assert model.shared_s == pytest.approx(8.0)


def test_two_counts_find_what_workers_cannot_share() -> None:
    # x(1) = 2 + 8, x(4) = 2 + 2; the guess a = 0 keeps a little of its weight.
    model = measured((1, 99.0), (1, 10.0), (4, 99.0), (4, 4.0)).model()
    assert model.fixed_s == pytest.approx(2.0, abs=0.1)
    assert model.time_s(4) == pytest.approx(4.0)


def test_workers_that_bring_nothing_leave_nothing_to_share() -> None:
    model = measured((2, 9.0), (2, 5.0), (4, 9.0), (4, 6.0)).model()
    assert (model.fixed_s, model.shared_s) == (6.0, 0.0)


def test_one_slow_batch_is_not_believed() -> None:
    assert measured((2, 9.0), (2, 4.0), (2, 40.0), (2, 4.2)).measured == {2: 4.2}
    assert measured((2, 9.0), (2, 4.0), (2, 40.0)).measured == {2: 4.0}


def test_a_new_load_moves_the_counts_that_are_not_in_use() -> None:
    times = measured((1, 9.0), (1, 8.0), (2, 9.0), *[(2, 4.0)] * 3, *[(2, 12.0)] * 2)
    assert times.measured == pytest.approx({1: 24.0, 2: 12.0})


@pytest.mark.parametrize("time_s", [0.0, -1.0, math.nan, math.inf])
def test_times_that_are_none_change_nothing(time_s: float) -> None:
    times = measured((2, 9.0), (2, 4.0), (2, time_s))
    assert times.measured == {2: 4.0}
    assert measured((2, time_s), (0, 1.0)).anchor == 0


def test_nothing_is_decided_from_the_first_batch_nor_from_zero_times() -> None:
    policy = ThroughputPolicy(0.1, 16)
    assert policy.propose(STEADY, 2).num_workers == 2
    zero = STEADY._replace(sample_time_s=0.0, learn_time_s=0.0, learn_actor_time_s=0.0)
    assert policy.propose(zero, 2).num_workers == 2


def test_the_fewest_workers_that_the_learner_need_not_wait_for() -> None:
    # x(n) = 8/n, c = 1, r = 1: it waits at most 10 % once x <= (1 + 0.1)/0.9 = 1.22, at n = 7.
    training = Training(resources(), lambda n, i: 8.0 / n)
    assert training.run(12)[-1] == 7
    assert training.decisions[1].reason == (
        "1 to 7: with 1 worker a batch took 8 s and the learner waited 78% of an iteration "
        "(at most 10%); 7 are enough"
    )


def test_none_that_saves_less_than_two_percent() -> None:
    # T(n) = 3 + 10/n with nothing to hide it: n(n-1) <= 10 / (0.02 (3 + 10/(n-1))) up to n = 10.
    target = Training(resources(), lambda n, i: 2.0 + 10.0 / n, critic_s=0.0).run(60)[-1]
    saved = [1.0 - (3.0 + 10.0 / n) / (3.0 + 10.0 / (n - 1)) for n in (target, target + 1)]
    assert saved[0] >= 0.01  # what is there already stays for half of it
    assert saved[1] < 0.02


def test_a_need_is_met_within_two_iterations() -> None:
    training = Training(
        resources(num_env_runners=2), lambda n, i: (4.0 if i < 20 else 16.0) / n, noise=0.0
    )
    targets = training.run(30)
    # The batch that is sampled in iteration 20 is measured in 21, and believed in 22.
    assert targets[20] == 4
    assert targets[21] >= 13


def test_workers_leave_when_they_are_no_longer_needed() -> None:
    training = Training(
        resources(num_env_runners=14, max_scaling_step=2),
        lambda n, i: (16.0 if i < 20 else 4.0) / n,
    )
    targets = training.run(140)
    assert targets[19] == 14
    assert targets[-1] == 4


def test_workers_that_share_cores_are_given_back() -> None:
    """From two on a batch takes ever longer: more workers than cores."""

    def sample_s(n: int, i: int) -> float:
        return 10.0 / min(n, 2) * (1.0 + 0.2 * max(0, n - 2))

    targets = Training(resources(num_env_runners=2, max_scaling_step=2), sample_s).run(120)
    assert max(targets) <= 6
    assert targets[-1] <= 3


@pytest.mark.parametrize("seed", SEEDS)
def test_useless_workers_do_not_pile_up(seed: int) -> None:
    training = Training(
        resources(max_scaling_step=1),
        lambda n, i: 6.0 if n > 2 else 12.0 / n,
        noise=0.05,
        seed=seed,
        start_iterations=1,
    )
    assert training.run(200)[-1] <= 5


@pytest.mark.parametrize("seed", SEEDS)
def test_a_long_start_does_not_add_up_demand(seed: int) -> None:
    """8/n needs 7 workers; for 40 iterations all that is measured is one."""
    training = Training(
        resources(max_scaling_step=2),
        lambda n, i: 8.0 / n,
        noise=0.05,
        seed=seed,
        start_iterations=40,
    )
    targets = training.run(40)
    assert 7 <= max(targets) <= 8


@pytest.mark.parametrize("seed", SEEDS)
def test_a_growing_load_is_followed(seed: int) -> None:
    training = Training(
        resources(max_scaling_step=2),
        lambda n, i: (2.0 + 14.0 * min(1.0, i / 100)) / n,
        noise=0.05,
        seed=seed,
    )
    targets = training.run(220)
    assert 2 <= targets[20] <= 6
    assert 13 <= targets[-1] <= 16


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("critic_s", [0.5, 1.0, 10.0])
def test_a_steady_noisy_load_does_not_flap(seed: int, critic_s: float) -> None:
    training = Training(
        resources(max_scaling_step=2),
        lambda n, i: 4.2 * critic_s / n,
        critic_s=critic_s,
        noise=0.1,
        seed=seed,
    )
    targets = training.run(300)[40:]
    changes = [i for i in range(1, len(targets)) if targets[i] != targets[i - 1]]
    assert len(changes) <= 260 // 10 // 2
    assert max(targets) - min(targets) <= 2
