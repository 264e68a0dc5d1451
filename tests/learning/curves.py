"""`python -m tests.learning.curves NAME=RUN ... -o FILE.png`: training returns by env steps."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt


def main() -> None:
    """Draws one line a run."""
    parser = argparse.ArgumentParser(prog="python -m tests.learning.curves", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN", help="name and folder of a run")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for each in arguments.runs:
        name, _, folder = each.partition("=")
        steps, returns = curve(Path(folder))
        axes.plot(steps, returns, label=name)
    axes.set_xlabel("env steps")
    axes.set_ylabel("training return (mean of the last 100 episodes)")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(arguments.output, dpi=120)


def curve(run: Path) -> tuple[list[int], list[float]]:
    """Env steps and training returns of a run, where there is a return."""
    rows = [json.loads(line) for line in (run / "progress.jsonl").read_text().splitlines()]
    known = [row for row in rows if row["episode_return_mean"] is not None]
    return (
        [row["num_env_steps_sampled_lifetime"] for row in known],
        [row["episode_return_mean"] for row in known],
    )


if __name__ == "__main__":
    main()
