"""How long a user waits for the first iteration, and a training for the next worker."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from tests.benchmarks.child import OpenSubject
from tests.benchmarks.record import Raw
from tests.benchmarks.tables import Table

ROWS = {
    "first_iteration_s": ("from the command to the first iteration of `make train`", 8.0),
    "replaced_s": ("from the kill of one of two rollout workers to two that are ready", 3.0),
}


class Sizes(NamedTuple):
    starts: int = 5
    kills: int = 10


QUICK = Sizes(1, 1)


def measure(open_subject: OpenSubject, quick: bool) -> Raw:
    """Seconds of each start and each replacement."""
    sizes = QUICK if quick else Sizes()
    with open_subject("tests.benchmarks.subjects.startup:Startup") as subject:
        return {
            "first_iteration_s": [subject.first_iteration() for _ in range(sizes.starts)],
            "replaced_s": subject.replacements(sizes.kills),
        }


def tables(raw: Raw) -> list[Table]:
    """One row a wait."""
    return [
        Table(
            "Waiting (seconds)",
            ("what", "median", "least", "greatest", "goal"),
            [
                (what, *(f"{of(raw[key]):.1f}" for of in (median, min, max)), f"{goal:g}")
                for key, (what, goal) in ROWS.items()
            ],
            "The first iteration is included: 2,048 env steps of LunarLander-v3 with 2 rollout "
            "workers and an update. Workers are killed while an MLP learns CartPole-v1, whose "
            "iterations of 2,048 env steps take turns with looking who is ready.",
        )
    ]
