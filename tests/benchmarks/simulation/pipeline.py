"""The training pipeline as a discrete-event model: what an iteration takes with N workers.

As in `rl_service.algorithms.base`: the learner updates the actor, then asks all workers for the
next batch and fits the critic meanwhile; an iteration ends when both are done.

    learner        actor | put, ask workers 1 … N | critic (its process has one core) | rest
    uplink         weights to each node once, one after the other
    worker i       request, its share of the vector steps
    downlink       batches, one after the other; then the learner takes each in
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import numpy as np
import simpy

from tests.benchmarks.simulation.machine import Cores, Link

Process = Iterator[simpy.Event]
"""A generator that SimPy runs: it yields what it waits for."""
LEARNER = "learner"
"""Name of the learner's process; the request threads are part of it."""


class Line(NamedTuple):
    """Seconds that grow with env steps."""

    fixed_s: float
    per_step_s: float

    def at(self, env_steps: float) -> float:
        return self.fixed_s + self.per_step_s * env_steps


@dataclass(frozen=True)
class Times:
    """What was measured of one process that has a core for itself."""

    vector_step_s: float
    vector_step_std_s: float
    request: Line
    """In the worker, beside vector steps: by the env steps that it brings home."""
    put_s: float
    """In the learner's process, once a batch."""
    dispatch_s: float
    """In the learner's process, per worker asked."""
    collect: Line
    """In the learner's process, per worker that answers."""
    actor: Line
    critic: Line
    rest_s: float
    """Of an iteration beside sampling and learning."""
    bytes_per_step: float
    """From worker to learner, per env step."""
    weight_bytes: float


@dataclass(frozen=True)
class Cluster:
    """Where it runs: nodes that are all alike; the learner is on the first."""

    cores_per_node: int
    max_nodes: int | None = None
    """None: as many as give each process a core. Else workers beyond that share the cores."""
    busy_speed: float = 1.0
    """See `Cores`."""
    bytes_per_s: float = 1.25e9
    """Each node's network, each way."""
    latency_s: float = 1e-4

    def place(self, num_workers: int) -> list[int]:
        """Index of each worker's node: one core for the learner, then a core a worker."""
        nodes = [(i + 1) // self.cores_per_node for i in range(num_workers)]
        return [n if self.max_nodes is None else n % self.max_nodes for n in nodes]


class Outcome(NamedTuple):
    """A simulated training, means over iterations."""

    env_steps_per_s: float
    iteration_s: float
    wait_share: float
    """Of an iteration: the learner does not learn."""


class Pipeline:
    """One training.

    Args:
        times: of its parts.
        cluster: where it runs.
        num_workers: rollout workers.
        num_envs: of each worker.
        env_steps: of a batch.
        gpu: whether actor and critic are fitted on a GPU; they take no core then.
        seed: of the spread of step times.
    """

    def __init__(
        self,
        times: Times,
        cluster: Cluster,
        *,
        num_workers: int,
        num_envs: int,
        env_steps: int,
        gpu: bool = False,
        seed: int = 0,
    ) -> None:
        self.times, self.cluster = times, cluster
        self._num_envs, self._env_steps, self._gpu = num_envs, env_steps, gpu
        self._rng = np.random.default_rng(seed)
        self._places = cluster.place(num_workers)
        self._env = simpy.Environment()
        count, speed = cluster.cores_per_node, cluster.busy_speed
        self._nodes = [Cores(self._env, count, speed) for _ in range(max(self._places) + 1)]
        self._uplink, self._downlink = (
            Link(self._env, cluster.bytes_per_s, cluster.latency_s) for _ in range(2)
        )

    def run(self, iterations: int) -> Outcome:
        """Simulates a batch to start with, then as many iterations."""
        durations: list[float] = []
        learning: list[float] = []
        self._env.run(self._env.process(self._train(iterations, durations, learning)))
        mean = fmean(durations)
        return Outcome(self._env_steps / mean, mean, 1.0 - fmean(learning) / mean)

    def _train(self, iterations: int, durations: list[float], learning: list[float]) -> Process:
        yield self._env.process(self._sample())
        for _ in range(iterations):
            started = self._env.now
            yield self._learn(self.times.actor)
            sampled = self._env.process(self._sample())
            yield self._learn(self.times.critic)
            learning.append(self._env.now - started)
            yield sampled
            yield self._nodes[0].work(self.times.rest_s, LEARNER)
            durations.append(self._env.now - started)

    def _learn(self, line: Line) -> simpy.Event:
        seconds = line.at(self._env_steps)
        return self._env.timeout(seconds) if self._gpu else self._nodes[0].work(seconds, LEARNER)

    def _sample(self) -> Process:
        """A whole batch, dealt evenly, as `BatchSampler` does."""
        yield self._nodes[0].work(self.times.put_s, LEARNER)
        arrivals: dict[int, simpy.Event] = {}  # of the weights, by node
        answers = []
        for worker, vector_steps in enumerate(self._shares()):
            yield self._nodes[0].work(self.times.dispatch_s, LEARNER)
            node = self._places[worker]
            if node and node not in arrivals:
                arrivals[node] = self._uplink.carry(self.times.weight_bytes)
            asked = self._answer(worker, vector_steps, arrivals.get(node))
            answers.append(self._env.process(asked))
        yield self._env.all_of(answers)

    def _shares(self) -> Sequence[int]:
        """Vector steps of each worker that gets any."""
        total = self._env_steps // self._num_envs
        even, more = divmod(total, len(self._places))
        shares = [even + (i < more) for i in range(len(self._places))]
        return [share for share in shares if share]

    def _answer(self, worker: int, vector_steps: int, weights: simpy.Event | None) -> Process:
        """One request: weights, vector steps, the way home."""
        node, env_steps = self._places[worker], vector_steps * self._num_envs
        if weights is not None:
            yield weights
        work = self.times.request.at(env_steps) + self._stepping_s(vector_steps)
        yield self._nodes[node].work(work, f"worker {worker}")
        if node:
            yield self._downlink.carry(env_steps * self.times.bytes_per_step)
        yield self._nodes[0].work(self.times.collect.at(env_steps), LEARNER)

    def _stepping_s(self, vector_steps: int) -> float:
        """Of so many vector steps: their sum has the mean and spread of independent ones."""
        mean = vector_steps * self.times.vector_step_s
        variance = vector_steps * self.times.vector_step_std_s**2
        if not variance:
            return mean
        return float(self._rng.gamma(mean**2 / variance, variance / mean))


def ceiling(times: Times, env_steps: int) -> float:
    """Env steps a second that the learner can take in, however many workers there are."""
    busy = times.actor.at(env_steps) + times.critic.at(env_steps) + times.rest_s
    return env_steps / busy
