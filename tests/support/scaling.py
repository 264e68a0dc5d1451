"""A training that lasts no time: batches, learner and workers as numbers, for the autoscaler."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from rl_service.config.settings import ResourceSettings
from rl_service.rollout.autoscaler import Autoscaler, Decision, Load

STEADY = Load(
    iteration=1,
    env_steps=2048,
    num_workers=2,
    num_alive=2,
    num_starting=0,
    sample_time_s=4.0,
    learn_time_s=2.0,
    learn_actor_time_s=1.0,
    iteration_time_s=5.0,
    max_placeable=None,
    worker_hours=0.0,
)
"""Two workers, and a learner that waits for three of five seconds."""


def six(load: Load) -> int:
    """A policy that always wants six workers."""
    return 6


def one(load: Load) -> int:
    """A policy that always wants one worker."""
    return 1


@dataclass
class Training:
    """Workers sample the next batch, with whoever is alive, while the critic is fitted."""

    settings: ResourceSettings
    sample_s: Callable[[int, int], float]
    """Of a number of workers and an iteration."""
    actor_s: float = 1.0
    critic_s: float = 1.0
    noise: float = 0.0
    """Standard deviation, as a share."""
    start_iterations: int = 2
    """That a worker takes from being asked for to its first sample."""
    room: int | None = None
    seed: int = 0
    decisions: list[Decision] = field(default_factory=list)

    def run(self, num_iterations: int) -> list[int]:
        """The target after each iteration."""
        rng = random.Random(self.seed)
        scaler = Autoscaler(self.settings, self.settings.num_env_runners)
        alive, starting = self.settings.num_env_runners, list[int]()
        sampled_by, sample = alive, 3.0 * self.sample_s(alive, 0)  # the first batch warms up
        for i in range(1, num_iterations + 1):
            actor, critic = (s * self._factor(rng) for s in (self.actor_s, self.critic_s))
            now, next_sample = alive, self.sample_s(alive, i) * self._factor(rng)
            starting = [left - 1 for left in starting]
            alive += sum(left <= 0 for left in starting)
            starting = [left for left in starting if left > 0]
            iteration_s = actor + max(critic, next_sample)
            load = Load(
                i, 2048 * i, sampled_by, alive, len(starting), sample, actor + critic, actor,
                iteration_s, self.room, 0.0,
            )  # fmt: skip
            self.decisions.append(scaler.decide(load))
            change = self.decisions[-1].num_workers - alive - len(starting)
            starting += [self.start_iterations] * max(0, change)
            for _ in range(-change):
                if starting:
                    starting.pop()
                else:
                    alive -= 1
            sampled_by, sample = now, next_sample
        return [decision.num_workers for decision in self.decisions]

    def _factor(self, rng: random.Random) -> float:
        return max(0.2, rng.gauss(1.0, self.noise))
