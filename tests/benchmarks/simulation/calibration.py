"""Measures what the model needs, and the trainings that it is checked against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median, stdev
from typing import Any, NamedTuple

from tests.benchmarks.child import OpenSubject
from tests.benchmarks.machine import num_cores
from tests.benchmarks.record import Raw
from tests.benchmarks.repeats import interleaved
from tests.benchmarks.simulation.pipeline import Line, Times

WORKER_COUNTS = (1, 2, 4, 8, 12)
"""Of real trainings: up to four anywhere, and three fourths of the cores where there are more."""
MINIBATCHES = 16
"""Of a batch, whatever its size."""


class Regime(NamedTuple):
    """How the batch follows the number of workers."""

    name: str
    env_steps: int
    """Of a batch, or of each worker's share of it."""
    per_worker: bool

    def batch(self, num_workers: int) -> int:
        return self.env_steps * (num_workers if self.per_worker else 1)


class Sizes(NamedTuple):
    worker_counts: tuple[int, ...]
    regimes: tuple[Regime, ...] = (
        Regime("fixed batch", 16384, per_worker=False),
        Regime("growing batch", 2048, per_worker=True),
    )
    num_envs: int = 16
    num_epochs: int = 10
    vector_steps: tuple[int, int] = (8, 128)
    """Of a short and a long request: what does not grow with steps is what both share."""
    iterations: int = 2
    repeats: int = 5


QUICK = Sizes(
    worker_counts=(1,),
    regimes=(Regime("fixed batch", 128, False), Regime("growing batch", 64, True)),
    num_envs=4,
    num_epochs=1,
    vector_steps=(2, 16),
    iterations=1,
    repeats=2,
)


def measure(open_subject: OpenSubject, quick: bool) -> Raw:
    """Every repeat of the parts and of the trainings."""
    cores = num_cores()
    counts = tuple(n for n in WORKER_COUNTS if n <= max(4, 3 * cores // 4))
    sizes = QUICK if quick else Sizes(counts)
    batches = {
        f"{workers} workers, {batch} steps": (workers, batch)
        for regime in sizes.regimes
        for workers in sizes.worker_counts
        for batch in (regime.batch(workers),)
    }
    alone = {f"alone, {batch} steps": (0, batch) for batch in _alone_batches(sizes)}
    trainings = alone | batches
    variants = {name: _variant(sizes, *each) for name, each in trainings.items()}
    path = "tests.benchmarks.subjects.pipeline:Pipeline"
    samplers = _variant(sizes, 0, sizes.regimes[0].env_steps)
    with open_subject(path, variants=variants, samplers=samplers, num_samplers=cores) as subject:
        candidates = _parts(subject, sizes)
        candidates |= {name: partial(subject.train, name, sizes.iterations) for name in variants}
        samples = interleaved(candidates, sizes.repeats, warmups=1)
    return {
        "cores": cores,
        "num_envs": sizes.num_envs,
        "num_epochs": sizes.num_epochs,
        "vector_steps": list(sizes.vector_steps),
        "regimes": [regime._asdict() for regime in sizes.regimes],
        "worker_counts": list(sizes.worker_counts),
        "parts": {name: values for name, values in samples.items() if name not in trainings},
        "alone": [samples[name] for name in alone],
        "trainings": [
            {"workers": workers, "env_steps": batch, "samples": samples[name]}
            for name, (workers, batch) in batches.items()
        ],
    }


def _alone_batches(sizes: Sizes) -> tuple[int, int]:
    """The smallest and the greatest batch that there is."""
    batches = [regime.batch(n) for regime in sizes.regimes for n in sizes.worker_counts]
    return min(batches), max(batches)


def _parts(subject: Any, sizes: Sizes) -> dict[str, Callable[[], Any]]:
    short, long = sizes.vector_steps
    return {
        "short request": partial(subject.request, short),
        "long request": partial(subject.request, long),
        "alone": partial(subject.sample, long, False),
        "together": partial(subject.sample, long, True),
    }


def _variant(sizes: Sizes, num_workers: int, batch: int) -> dict[str, Any]:
    return {
        "env": {"id": "LunarLander-v3"},
        "model": {"name": "mlp"},
        "algorithm": {
            "train_batch_size": batch,
            "minibatch_size": batch // MINIBATCHES,
            "num_epochs": sizes.num_epochs,
        },
        "resources": {
            "num_env_runners": num_workers,
            "num_envs_per_env_runner": sizes.num_envs,
        },
    }


def times_of(raw: Raw) -> Times:
    """The model's times: medians of what was measured of processes alone."""
    short, long = (raw["parts"][name] for name in ("short request", "long request"))
    stepping = _line(short, long, "sample_s")
    beside = _line(short, long, "beside_s")
    alone = raw["alone"]
    num_vector_steps = max(raw["vector_steps"])
    return Times(
        vector_step_s=stepping.per_step_s * raw["num_envs"],
        vector_step_std_s=stdev(raw["parts"]["alone"]) / num_vector_steps**0.5,
        request=Line(stepping.fixed_s + beside.fixed_s, beside.per_step_s),
        put_s=_median(long, "put_s"),
        dispatch_s=_median(long, "dispatch_s"),
        collect=_line(short, long, "collect_s"),
        actor=_line(*alone, "learn_actor_time_s"),
        critic=_line(*alone, "critic_time_s"),
        rest_s=median(_median(samples, "rest_s") for samples in alone),
        bytes_per_step=_median(long, "batch_bytes") / _median(long, "env_steps"),
        weight_bytes=_median(long, "weight_bytes"),
    )


def busy_speed(raw: Raw) -> float:
    """Speed of a core while all are busy, of one that works alone."""
    return min(1.0, median(raw["parts"]["alone"]) / median(raw["parts"]["together"]))


def _line(small: Sequence[Raw], large: Sequence[Raw], key: str) -> Line:
    """Through the medians of two sizes; never below zero at either end."""
    sizes = [_median(samples, "env_steps") for samples in (small, large)]
    seconds = [_median(samples, key) for samples in (small, large)]
    slope = max(0.0, (seconds[1] - seconds[0]) / (sizes[1] - sizes[0]))
    return Line(max(0.0, seconds[1] - slope * sizes[1]), slope)


def _median(samples: Sequence[Raw], key: str) -> float:
    derived: dict[str, Callable[[Raw], float]] = {
        "beside_s": lambda s: (
            s["total_s"] - s["put_s"] - s["dispatch_s"] - s["collect_s"] - s["sample_s"]
        ),
        "critic_time_s": lambda s: s["learn_time_s"] - s["learn_actor_time_s"],
        "rest_s": lambda s: s["iteration_time_s"] - s["sample_time_s"] - s["learn_time_s"],
    }
    return median(derived.get(key, lambda s: s[key])(s) for s in samples)
