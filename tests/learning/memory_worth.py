"""What the critic's memory brings: the same training with an MLP and with a GPT-2 as the critic.

    python -m tests.learning.memory_worth   draws the table of docs/results/memory_worth.md again

The runs are those of docs/results/critics.json and docs/results/memory.json.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tests.learning import critics, memory, training
from tests.learning.training import Results

PAGE = training.ROOT / "docs" / "results" / "memory_worth.md"
MARKS = ("<!-- table of tests.learning.memory_worth -->\n", "<!-- end of the table -->\n")
NUM_SHUFFLES = 100_000


class Pair(NamedTuple):
    """Two ways of training that differ in the critic alone."""

    observed: str
    """What a policy sees of the environment."""
    actor: str
    env: str
    mlp: str
    """Name of the variant in the record."""
    gpt2: str


IN_FULL, IN_PART = "all", "no velocities"
OF_CRITICS = [
    Pair(IN_FULL, "MLP", env, critics.MLP, critics.DEFAULT)
    for env in (critics.LUNAR, critics.ACROBOT, "Pendulum-v1")
]
OF_MEMORY = [
    Pair(IN_PART, actor, env, mlp, gpt2)
    for actor, mlp, gpt2 in (
        ("MLP", memory.NONE, memory.CRITIC),
        ("stack", memory.STACK, memory.STACK_CRITIC),
    )
    for env in (memory.CARTPOLE, memory.PENDULUM, memory.LUNAR)
]


def table() -> str:
    """A line for each pair: means, their difference, how likely chance gives one as large."""
    lines = [
        "| the policy sees | actor | environment | runs a side | MLP critic | GPT-2 critic "
        "| difference ± standard error | p | worst run: MLP, GPT-2 |",
        "|---|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for results, pairs in ((critics.read(), OF_CRITICS), (memory.read(), OF_MEMORY)):
        lines += [_line(results, pair) for pair in pairs]
    return "\n".join(lines) + "\n"


def _line(results: Results, pair: Pair) -> str:
    mlp, gpt2 = (np.array(training.scores(results, pair.env, v)) for v in (pair.mlp, pair.gpt2))
    error = np.sqrt(sum(scores.var(ddof=1) / len(scores) for scores in (mlp, gpt2)))
    cells = [
        pair.observed,
        pair.actor,
        pair.env,
        str(len(mlp)),
        f"{mlp.mean():.0f}",
        f"{gpt2.mean():.0f}",
        f"{gpt2.mean() - mlp.mean():+.1f} ± {error:.1f}",
        f"{chance(mlp, gpt2):.3f}",
        f"{mlp.min():.0f}, {gpt2.min():.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def chance(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> float:
    """Share of random divisions of all scores into two sides whose means differ at least as much.

    This is the p-value of a two-sided permutation test.
    """
    both, size = np.concatenate([first, second]), len(first)
    shuffled = np.random.default_rng(0).permuted(np.tile(both, (NUM_SHUFFLES, 1)), axis=1)
    differences = shuffled[:, :size].mean(axis=1) - shuffled[:, size:].mean(axis=1)
    found = abs(first.mean() - second.mean())
    return float((abs(differences) >= found - 1e-9).mean())


def main() -> None:
    training.write_between(PAGE, MARKS, table())


if __name__ == "__main__":
    main()
