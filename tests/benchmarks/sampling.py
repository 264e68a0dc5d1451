"""Sampling alone, against stepping the same envs with nothing around them."""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import NamedTuple

from tests.benchmarks.child import OpenSubject
from tests.benchmarks.record import Raw
from tests.benchmarks.repeats import Samples, interleaved, ratio
from tests.benchmarks.tables import Table

GOAL_ONE_WORKER, GOAL_TWO_WORKERS = 0.6, 1.7
NUM_ENVS = 16
PLACES = ("bare", "worker", "one", "two")


class Sizes(NamedTuple):
    environments: tuple[str, ...] = ("LunarLander-v3", "HalfCheetah-v4")
    vector_steps: int = 256
    repeats: int = 7


QUICK = Sizes(("LunarLander-v3",), vector_steps=16, repeats=1)


def measure(open_subject: OpenSubject, quick: bool) -> Raw:
    """Per environment, env steps a second of every repeat."""
    sizes = QUICK if quick else Sizes()
    return {env_id: _measure(open_subject, env_id, sizes) for env_id in sizes.environments}


def _measure(open_subject: OpenSubject, env_id: str, sizes: Sizes) -> Samples:
    path = "tests.benchmarks.subjects.samplers:Samplers"
    with open_subject(path, env_id=env_id, num_envs=NUM_ENVS) as samplers:
        candidates = {
            what: partial(samplers.env_steps_per_s, what, sizes.vector_steps) for what in PLACES
        }
        return interleaved(candidates, sizes.repeats, warmups=1)


def tables(raw: Raw) -> list[Table]:
    """One worker against the limit, and two against one."""
    return [
        Table(
            "Sampling against bare stepping (env steps/s)",
            ("environment", "bare", "worker", "worker / bare", "goal"),
            [_row(env_id, each, "bare", "worker", GOAL_ONE_WORKER) for env_id, each in raw.items()],
            f"One process, {NUM_ENVS} envs, untrained MLP policy. Bare: `env.step` in a loop with "
            f"random actions chosen beforehand, resets included: what no sampler can beat.",
        ),
        Table(
            "Sampling with two rollout workers (env steps/s)",
            ("environment", "one worker", "two workers", "two / one", "goal"),
            [_row(env_id, each, "one", "two", GOAL_TWO_WORKERS) for env_id, each in raw.items()],
            f"{NUM_ENVS} envs in each worker; batches travel to the learner.",
        ),
    ]


def _row(env_id: str, samples: Samples, first: str, second: str, goal: float) -> tuple[str, ...]:
    return (
        env_id,
        f"{median(samples[first]):,.0f}",
        f"{median(samples[second]):,.0f}",
        str(ratio(samples[second], samples[first])),
        f"{goal}",
    )
