"""Whether a training learns the same with workers that come and go as with a fixed number."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rl_service.rollout.throughput import Load
from tests.benchmarks.child import OpenSubject
from tests.benchmarks.machine import num_cores
from tests.benchmarks.record import Raw
from tests.benchmarks.tables import Table

FIXED, CHANGING = "2, fixed", "1 → 3 → 1"
CORES_OF_ONE = 4
"""What a training with three workers takes."""
LAST = 10
"""Iterations that the final return is averaged over."""


class Sizes(NamedTuple):
    iterations: int = 120
    train_batch_size: int = 4096
    seeds: tuple[int, ...] = (100, 200, 300)


QUICK = Sizes(6, 256, (1,))


def measure(open_subject: OpenSubject, quick: bool) -> Raw:
    """Rows of each training, by kind and seed; as many at a time as there are cores for."""
    sizes = QUICK if quick else Sizes()
    path = "tests.benchmarks.subjects.disturbed:DisturbedTraining"

    def train(kind: str, seed: int) -> list[Any]:
        with open_subject(path, variant=_variant(kind, seed, sizes), seed=seed) as training:
            rows: list[Any] = training.train(sizes.iterations, None)
            return rows

    places = [(kind, seed) for seed in sizes.seeds for kind in (FIXED, CHANGING)]
    at_a_time = max(1, num_cores() // CORES_OF_ONE)
    with ThreadPoolExecutor(at_a_time) as pool:
        rows = list(pool.map(train, *zip(*places, strict=True)))
    found: dict[str, dict[str, Any]] = {FIXED: {}, CHANGING: {}}
    for (kind, seed), of_one in zip(places, rows, strict=True):
        found[kind][str(seed)] = of_one
    return {"sizes": sizes._asdict() | {"seeds": list(sizes.seeds)}, "rows": found}


def three_in_the_middle(load: Load, iterations: int = Sizes().iterations) -> int:
    """A scaling policy: 1 worker, 3 in the second third of the iterations, then 1 again."""
    return 3 if iterations // 3 <= load.iteration < 2 * iterations // 3 else 1


def three_in_the_middle_of_quick(load: Load) -> int:
    return three_in_the_middle(load, QUICK.iterations)


def _variant(kind: str, seed: int, sizes: Sizes) -> dict[str, Any]:
    batch = sizes.train_batch_size
    policy = "three_in_the_middle_of_quick" if sizes == QUICK else "three_in_the_middle"
    changing = {
        "num_env_runners": 1,
        "max_env_runners": 3,
        "autoscaling_policy": f"{__name__}:{policy}",
        "down_delay_iterations": 1,
    }
    workers = {"num_env_runners": 2} if kind == FIXED else changing
    return {
        "env": {"id": "LunarLander-v3"},
        "model": {"name": "mlp"},
        "algorithm": {"train_batch_size": batch, "minibatch_size": batch // 16},
        "resources": {**workers, "num_envs_per_env_runner": 16},
        "stop": {"iterations": sizes.iterations},
        "seed": seed,
    }


def tables(raw: Raw) -> list[Table]:
    """One row a training, and one for each kind."""
    rows = []
    for kind, by_seed in raw["rows"].items():
        rows += [_row(f"{kind}, seed {seed}", [each]) for seed, each in by_seed.items()]
        rows.append(_row(f"{kind}, all", list(by_seed.values())))
    sizes = raw["sizes"]
    return [
        Table(
            "Workers that come and go",
            (
                "workers",
                "return, whole run",
                f"return, last {LAST} iterations",
                "workers that sampled",
                "env steps an iteration",
                "weights lag",
            ),
            rows,
            f"LunarLander-v3, PPO, an MLP, {sizes['iterations']} iterations of "
            f"{sizes['train_batch_size']:,} env steps. Returns are those of training, a mean over "
            f"100 episodes at each iteration, averaged over iterations.",
        )
    ]


def _row(name: str, trainings: list[list[Raw]]) -> tuple[str, ...]:
    rows = [row for each in trainings for row in each]
    last = [row for each in trainings for row in each[-LAST:]]
    return (
        name,
        _mean_return(rows),
        _mean_return(last),
        ", ".join(map(str, sorted({row["num_sampling_workers"] for row in rows}))),
        ", ".join(f"{batch:,}" for batch in sorted({row["batch"] for row in rows})),
        f"{max(row['weights_lag'] for row in rows):g}",
    )


def _mean_return(rows: list[Raw]) -> str:
    known = [row["episode_return_mean"] for row in rows if row["episode_return_mean"] is not None]
    return f"{fmean(known):.1f}" if known else "none ended"


def draw(raw: Raw, path: Path) -> None:
    """Return and workers over env steps: each kind's mean line and the band of its seeds."""
    import numpy as np
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), layout="constrained")
    returns, workers = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for kind, by_seed in raw["rows"].items():
        curves = np.array(  # (seeds, iterations), NaN before the first episode has ended
            [[row["episode_return_mean"] for row in rows] for rows in by_seed.values()], float
        )
        steps = np.cumsum([row["batch"] for row in next(iter(by_seed.values()))])
        [line] = returns.plot(steps, curves.mean(axis=0), label=kind)
        returns.fill_between(
            steps, curves.min(axis=0), curves.max(axis=0), alpha=0.2, color=line.get_color()
        )
        for rows in by_seed.values():
            workers.plot(steps, [r["num_sampling_workers"] for r in rows], color=line.get_color())
    returns.set_ylabel("episode return of training")
    returns.set_title("LunarLander-v3, PPO: mean of the seeds, and the band between them")
    returns.legend()
    workers.set_ylabel("rollout workers")
    workers.set_xlabel("env steps")
    figure.savefig(path, dpi=120)
