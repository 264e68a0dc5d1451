"""How long a training takes to get over each fault."""

from __future__ import annotations

from statistics import median
from typing import Any, NamedTuple

from tests.benchmarks.child import OpenSubject
from tests.benchmarks.record import Raw
from tests.benchmarks.tables import Table

FAULTS = {
    "worker killed": "SIGKILL to one of two workers while it samples",
    "worker hung": "one environment stands still; `worker_timeout_s` 5",
    "node lost": "SIGKILL to the raylet of the node that has one of two workers",
    "all workers killed": "SIGKILL to both",
    "environment raises": "one step of one environment",
    "environment returns NaN": "one observation of one environment",
    "learner killed": "SIGKILL to the command, then `train --resume`",
}


class Sizes(NamedTuple):
    repeats: int = 3
    faults: tuple[str, ...] = tuple(FAULTS)


QUICK = Sizes(1, ("worker killed", "environment returns NaN"))


def measure(open_subject: OpenSubject, quick: bool) -> Raw:
    """What each fault did, in every repeat."""
    sizes = QUICK if quick else Sizes()
    path = "tests.benchmarks.subjects.faults:Faults"
    found: dict[str, list[Any]] = {fault: [] for fault in sizes.faults}
    with open_subject(path) as faults:
        for _ in range(sizes.repeats):
            for fault in sizes.faults:
                found[fault].append(faults.undergo(fault))
    return {"faults": found}


def tables(raw: Raw) -> list[Table]:
    """One row a fault."""
    return [
        Table(
            "Faults and how long they took to get over",
            (
                "fault",
                "what was done",
                "longest iteration, s",
                "in peace, s",
                "as before after, s",
                "env steps an iteration",
                "episodes dropped",
            ),
            [_row(fault, samples) for fault, samples in raw["faults"].items()],
            "CartPole-v1, PPO, an MLP, 2 workers, 2,048 env steps an iteration. In peace: the "
            "median iteration before. As before: all workers there again and an iteration done "
            "with them; after a killed learner, the first iteration of the resumed run, its start "
            "included. Medians of the repeats.",
        )
    ]


def _row(fault: str, samples: list[Raw]) -> tuple[str, ...]:
    def middle(key: str) -> str:
        return f"{median(sample[key] for sample in samples):.1f}"

    batches = sorted({batch for sample in samples for batch in sample["batches"]})
    return (
        fault,
        FAULTS[fault],
        middle("longest_s"),
        middle("in_peace_s"),
        middle("recovered_s"),
        ", ".join(f"{batch:,}" for batch in batches),
        f"{median(sample['dropped'] for sample in samples):g}",
    )
