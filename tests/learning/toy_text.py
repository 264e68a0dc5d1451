"""What an MLP learns in gymnasium's toy-text environments, Taxi with and without its action masks.

    python -m tests.learning.toy_text                trains what is missing, then draws
    python -m tests.learning.toy_text --parallel 0   draws the table again

The record is docs/results/toy_text.json; the table is in docs/results/toy_text.md.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.learning import training
from tests.learning.training import Flat, Job, Results

RAW = training.ROOT / "docs" / "results" / "toy_text.json"
PAGE = RAW.with_suffix(".md")
MARKS = ("<!-- table of tests.learning.toy_text -->\n", "<!-- end of the table -->\n")
VARIANT = "mlp"
SEEDS = (1000, 2000, 3000, 4000, 5000)
"""So far apart that no two runs are evaluated on the same episodes."""
COMMON: Flat = {
    "model.name": VARIANT,
    "evaluation.final_num_episodes": 300,
    "tracking.tensorboard": False,
}


class Task(NamedTuple):
    """An environment, and what differs from its preset."""

    env: str
    best: str
    """Mean return of the best policy."""
    settings: Flat


TASKS = {
    "FrozenLake-v1, not slippery": Task(
        "FrozenLake-v1", "1", {"env.kwargs": {"is_slippery": False}}
    ),
    "FrozenLake-v1": Task("FrozenLake-v1", "0.74", {}),
    "Taxi-v3": Task("Taxi-v3", "7.93", {}),
    "Taxi-v3, without action masks": Task("Taxi-v3", "7.93", {"env.action_masks": False}),
    "CliffWalking-v1": Task("CliffWalking-v1", "-13", {}),
    "Blackjack-v1": Task("Blackjack-v1", "-0.05", {}),
}


def missing(results: Results) -> list[Job]:
    """Runs that are not on record, those of the first seeds first."""
    return [
        Job(name, VARIANT, seed)
        for seed in SEEDS
        for name in TASKS
        if str(seed) not in results.get(name, {}).get(VARIANT, {})
    ]


def settings_of(job: Job) -> Flat:
    """Of one run; the rest is in the preset of its environment."""
    task = TASKS[job.env]
    return {"env.id": task.env, **COMMON, **task.settings}


def read() -> Results:
    """The record."""
    return training.read(RAW)


def table(results: Results) -> str:
    """Each environment with all seeds."""
    lines = ["| environment | return | seeds | best possible |", "|---|---|---|---|"]
    for name, task in TASKS.items():
        scores = training.scores(results, name, VARIANT)
        mean, seeds = training.summary(scores, decimals=2)
        lines.append(f"| {name} | {mean} | {seeds} | {task.best} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parallel = training.parallel_runs(__doc__)
    results = training.fill(RAW, missing(read()), settings_of, parallel)
    training.write_between(PAGE, MARKS, table(results))


if __name__ == "__main__":
    main()
