"""The model of the training pipeline, where its answer is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import simpy

from tests.benchmarks.simulation.machine import Cores, Link
from tests.benchmarks.simulation.pipeline import Cluster, Line, Outcome, Pipeline, Times, ceiling

NOTHING = Line(0.0, 0.0)
TIMES = Times(
    vector_step_s=1e-3,
    vector_step_std_s=0.0,
    request=NOTHING,
    put_s=0.0,
    dispatch_s=0.0,
    collect=NOTHING,
    actor=Line(0.1, 0.0),
    critic=Line(0.2, 0.0),
    rest_s=0.0,
    bytes_per_step=0.0,
    weight_bytes=0.0,
)
ENOUGH = Cluster(cores_per_node=4096, latency_s=0.0)
"""One node with a core for each process."""
APART = Cluster(cores_per_node=1, latency_s=0.0)
"""A node for each process."""
NUM_ENVS, ENV_STEPS = 10, 8000  # 800 vector steps: 0.8 s


def run(
    workers: int, times: Times = TIMES, cluster: Cluster = ENOUGH, iterations: int = 3
) -> Outcome:
    pipeline = Pipeline(times, cluster, num_workers=workers, num_envs=NUM_ENVS, env_steps=ENV_STEPS)
    return pipeline.run(iterations)


def finish_times(
    cores: Cores, env: simpy.Environment, jobs: list[tuple[float, str]]
) -> list[float]:
    ended: dict[int, float] = {}

    def wait(i: int, event: simpy.Event) -> Iterator[simpy.Event]:
        yield event
        ended[i] = env.now

    for i, (seconds, owner) in enumerate(jobs):
        env.process(wait(i, cores.work(seconds, owner)))
    env.run()
    return [ended[i] for i in range(len(jobs))]


@pytest.mark.parametrize(
    ("count", "jobs", "ends"),
    [
        (1, [(1.0, "a")], [1.0]),
        (2, [(1.0, "a"), (2.0, "b")], [1.0, 2.0]),
        (1, [(1.0, "a"), (2.0, "b")], [2.0, 3.0]),  # halves, then alone
        (4, [(1.0, "a"), (1.0, "a")], [2.0, 2.0]),  # threads of one process
        (2, [(1.0, "a"), (1.0, "b"), (1.0, "c")], [1.5, 1.5, 1.5]),
    ],
)
def test_processes_share_cores_evenly(
    count: int, jobs: list[tuple[float, str]], ends: list[float]
) -> None:
    env = simpy.Environment()
    assert finish_times(Cores(env, count), env, jobs) == pytest.approx(ends)


def test_busy_cores_are_slower() -> None:
    env = simpy.Environment()
    cores = Cores(env, 3, busy_speed=0.5)
    assert finish_times(cores, env, [(1.0, "a")]) == pytest.approx([1.0])
    env = simpy.Environment()
    cores = Cores(env, 3, busy_speed=0.5)
    assert finish_times(cores, env, [(1.0, "a"), (1.0, "b")]) == pytest.approx([1 / 0.75] * 2)


def test_a_link_carries_one_thing_at_a_time() -> None:
    env = simpy.Environment()
    link = Link(env, bytes_per_s=100.0, latency_s=0.5)
    ended: list[float] = []

    def send(num_bytes: float) -> Iterator[simpy.Event]:
        yield link.carry(num_bytes)
        ended.append(env.now)

    for num_bytes in (100.0, 200.0):
        env.process(send(num_bytes))
    env.run()
    assert ended == pytest.approx([1.5, 3.5])


def test_one_worker_without_a_network_is_the_closed_form() -> None:
    outcome = run(1)
    assert outcome.iteration_s == pytest.approx(0.1 + max(0.2, 0.8))
    assert outcome.env_steps_per_s == pytest.approx(ENV_STEPS / 0.9)
    assert outcome.wait_share == pytest.approx(1 - 0.3 / 0.9)


@pytest.mark.parametrize("workers", [2, 3])
def test_sampling_is_divided_by_the_workers(workers: int) -> None:
    slowest = -(-800 // workers) * 1e-3
    assert run(workers).iteration_s == pytest.approx(0.1 + slowest)


@pytest.mark.parametrize("workers", [4, 100, 1000])
def test_with_enough_workers_the_learner_is_the_limit(workers: int) -> None:
    outcome = run(workers)
    assert outcome.env_steps_per_s == pytest.approx(ceiling(TIMES, ENV_STEPS))
    assert outcome.env_steps_per_s == pytest.approx(ENV_STEPS / 0.3)
    assert outcome.wait_share == pytest.approx(0.0, abs=1e-9)


def test_few_cores_are_shared_by_workers_and_critic() -> None:
    one_machine = Cluster(cores_per_node=2, max_nodes=1)
    # Five processes with 0.2 s of work each on two cores.
    assert run(4, TIMES, one_machine).iteration_s == pytest.approx(0.1 + 1.0 / 2)
    alone = Cluster(cores_per_node=1, max_nodes=1)
    assert run(1, TIMES, alone).iteration_s == pytest.approx(0.1 + 0.2 + 0.8)


def test_a_slow_downlink_is_the_limit() -> None:
    times = replace(TIMES, bytes_per_step=1000.0)
    cluster = replace(APART, bytes_per_s=4e6)  # 8 MB: 2 s
    outcome = run(80, times, cluster)
    assert outcome.iteration_s == pytest.approx(0.1 + 10e-3 + 2.0)
    assert run(80, times, replace(ENOUGH, bytes_per_s=4e6)).iteration_s == pytest.approx(0.3)


def test_weights_go_to_each_node_once_and_one_after_the_other() -> None:
    times = replace(TIMES, weight_bytes=1e6)
    slow = replace(APART, bytes_per_s=1e6)  # a second a node
    outcome = run(8, times, slow)
    assert outcome.iteration_s == pytest.approx(0.1 + 8.0 + 0.1)
    two_nodes = replace(slow, cores_per_node=5)  # four workers beside the learner, four apart
    assert run(8, times, two_nodes).iteration_s == pytest.approx(0.1 + 1.0 + 0.1)


def test_asking_many_workers_takes_the_learners_own_time() -> None:
    times = replace(TIMES, dispatch_s=1e-3, collect=Line(1e-3, 0.0))
    outcome = run(200, times)
    assert outcome.iteration_s == pytest.approx(0.1 + 0.2 + 200 * 2e-3, rel=0.01)


def test_a_spread_of_step_times_makes_the_slowest_worker_later() -> None:
    spread = replace(TIMES, vector_step_std_s=2e-3, critic=NOTHING)
    even = replace(TIMES, critic=NOTHING)
    one = [run(1, times, iterations=50).iteration_s for times in (even, spread)]
    assert one[1] == pytest.approx(one[0], rel=0.05)
    many = [run(40, times, iterations=20).iteration_s for times in (even, spread)]
    assert many[1] > 1.1 * many[0]


def test_a_batch_of_few_steps_leaves_workers_idle() -> None:
    pipeline = Pipeline(TIMES, ENOUGH, num_workers=1000, num_envs=10, env_steps=50)
    assert pipeline.run(2).iteration_s == pytest.approx(0.3)


def test_workers_fill_nodes_after_the_learner() -> None:
    assert Cluster(cores_per_node=4).place(8) == [0, 0, 0, 1, 1, 1, 1, 2]
    assert Cluster(cores_per_node=2, max_nodes=1).place(4) == [0, 0, 0, 0]
    assert Cluster(cores_per_node=1).place(2) == [1, 2]
