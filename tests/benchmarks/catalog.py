"""All benchmarks, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.benchmarks import (
    algorithms,
    chaos,
    critic,
    elasticity,
    faults,
    language_model,
    memory,
    page,
    remembering,
    returns,
    sampling,
    scaling,
    serving,
    startup,
    steps_to_return,
    training,
    tuning,
    workers,
)
from tests.benchmarks.child import OpenSubject
from tests.benchmarks.record import Raw, Tables


class Benchmark(NamedTuple):
    """Numbers, and how they read."""

    measure: Callable[[OpenSubject, bool], Raw]
    """Given how to open subjects, and whether tiny sizes will do."""
    tables: Tables
    by_default: bool = True
    """Whether `make bench` measures it; the others only when named."""
    needs_stable_baselines3: bool = False
    tried_elsewhere: bool = False
    """Whether other tests do in CI what it does, so that a minute of it would show little."""


BENCHMARKS = {
    "training": Benchmark(training.measure, training.tables, needs_stable_baselines3=True),
    "algorithms": Benchmark(algorithms.measure, algorithms.tables, needs_stable_baselines3=True),
    "remembering": Benchmark(remembering.measure, remembering.tables, needs_stable_baselines3=True),
    "returns": Benchmark(
        returns.measure, returns.tables, by_default=False, needs_stable_baselines3=True
    ),
    "steps_to_return": Benchmark(
        steps_to_return.measure,
        steps_to_return.tables,
        by_default=False,
        needs_stable_baselines3=True,
    ),
    "critic": Benchmark(critic.measure, critic.tables),
    "language_model": Benchmark(language_model.measure, language_model.tables),
    "sampling": Benchmark(sampling.measure, sampling.tables),
    "workers": Benchmark(workers.measure, workers.tables),
    "startup": Benchmark(startup.measure, startup.tables),
    "scaling": Benchmark(scaling.measure, scaling.tables),
    "serving": Benchmark(serving.measure, serving.tables, tried_elsewhere=True),
    "page": Benchmark(page.measure, page.tables),
    "tuning": Benchmark(tuning.measure, tuning.tables, tried_elsewhere=True),
    "elasticity": Benchmark(
        elasticity.measure, elasticity.tables, by_default=False, tried_elsewhere=True
    ),
    "faults": Benchmark(faults.measure, faults.tables, by_default=False, tried_elsewhere=True),
    "chaos": Benchmark(chaos.measure, chaos.tables, by_default=False, tried_elsewhere=True),
    "memory": Benchmark(memory.measure, memory.tables),
}
TABLES: dict[str, Tables] = {name: each.tables for name, each in BENCHMARKS.items()}
