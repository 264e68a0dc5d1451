"""What kills cost: a training whose rollout workers are killed, beside one left in peace."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import yaml

from tests.benchmarks.child import OpenSubject
from tests.benchmarks.machine import num_cores
from tests.benchmarks.record import Raw
from tests.benchmarks.tables import Table

GOAL = 0.70
CORES_OF_ONE = 6
"""What a training with three workers takes."""
TRAININGS = ("quickstart", "mlp")
"""What `make train` does, and one with iterations of a fraction of a second."""


class Sizes(NamedTuple):
    iterations: int = 200
    iterations_between_kills: float = 10.0
    workers: int = 3
    train_batch_size: int = 4096
    seed: int = 1


QUICK = Sizes(6, 2.0, 2, 256)


def measure(open_subject: OpenSubject, quick: bool) -> Raw:
    """Rows of each training, in peace and disturbed, by model; beside each other if cores allow."""
    sizes = QUICK if quick else Sizes()
    path = "tests.benchmarks.subjects.disturbed:DisturbedTraining"

    def train(name: str, kill_every: float | None) -> list[Raw]:
        with open_subject(path, variant=_variant(name, sizes), seed=sizes.seed) as training:
            rows: list[Raw] = training.train(sizes.iterations, kill_every)
            return rows

    kills = {"in peace": None, "disturbed": sizes.iterations_between_kills}
    rows: dict[str, dict[str, Any]] = {}
    with ThreadPoolExecutor(2 if num_cores() >= 2 * CORES_OF_ONE else 1) as pool:
        for name in TRAININGS[1:] if quick else TRAININGS:
            found = pool.map(partial(train, name), kills.values())
            rows[name] = dict(zip(kills, found, strict=True))
    return {"sizes": sizes._asdict(), "cores": num_cores(), "rows": rows}


def _variant(name: str, sizes: Sizes) -> dict[str, Any]:
    stop, seed = {"iterations": sizes.iterations}, sizes.seed
    if name == "quickstart":
        return _quickstart() | {"stop": stop, "seed": seed}
    batch = sizes.train_batch_size
    return {
        "env": {"id": "LunarLander-v3"},
        "model": {"name": name},
        "algorithm": {"train_batch_size": batch, "minibatch_size": batch // 16},
        "resources": {"num_env_runners": sizes.workers, "num_envs_per_env_runner": 16},
        "stop": stop,
        "seed": seed,
    }


def _quickstart() -> dict[str, Any]:
    path = Path(__file__).parents[2] / "tune_configs" / "quickstart.yaml"
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


def tables(raw: Raw) -> list[Table]:
    """One row a training."""
    sizes = raw["sizes"]
    rows = []
    for model, trainings in raw["rows"].items():
        peace = _steps_per_s(trainings["in peace"])
        rows += [_row(model, name, each, peace) for name, each in trainings.items()]
    return [
        Table(
            f"Rollout workers killed every {sizes['iterations_between_kills']:g} iterations "
            f"(goal: at least {GOAL:.0%} of the throughput)",
            (
                "training",
                "kills",
                "an iteration, s",
                "env steps/s",
                "of it in peace",
                "workers, mean",
                "iterations with all workers",
                "env steps an iteration",
                "weights lag",
                "return, last 20 iterations",
            ),
            rows,
            f"LunarLander-v3, PPO, {sizes['iterations']} iterations. quickstart: the settings of "
            f"`make train`, a GPT-2 critic and 2 workers. mlp: {sizes['workers']} workers. SIGKILL "
            f"to one of them at random, with a probability of "
            f"1/{sizes['iterations_between_kills']:g} after each iteration. Env steps/s over the "
            f"whole run.",
        )
    ]


def _row(model: str, name: str, rows: list[Raw], peace: float) -> tuple[str, ...]:
    most = max(row["num_env_runners"] for row in rows)
    full = fmean(row["num_env_runners"] == most for row in rows)
    batches = sorted({row["batch"] for row in rows})
    speed = _steps_per_s(rows)
    returns = [row["episode_return_mean"] for row in rows[-20:] if row["episode_return_mean"]]
    return (
        f"{model}, {name}",
        str(sum(row["killed"] for row in rows)),
        f"{median(row['iteration_time_s'] for row in rows):.2f}",
        f"{speed:,.0f}",
        f"{speed / peace:.2f}",
        f"{fmean(row['num_env_runners'] for row in rows):.1f}",
        f"{full:.0%}",
        ", ".join(f"{batch:,}" for batch in batches),
        f"{max(row['weights_lag'] for row in rows):g}",
        f"{median(returns):.0f}" if returns else "none ended",
    )


def _steps_per_s(rows: list[Raw]) -> float:
    steps: float = sum(row["batch"] for row in rows) / sum(row["iteration_time_s"] for row in rows)
    return steps
