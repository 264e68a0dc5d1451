"""More rollout workers: what training gains, what the learner allows, and what the model says."""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import Any, NamedTuple

from tests.benchmarks.child import OpenSubject
from tests.benchmarks.machine import num_cores
from tests.benchmarks.record import Raw
from tests.benchmarks.repeats import interleaved
from tests.benchmarks.tables import Table

NUM_EPOCHS = {"mlp": 10, "gpt2_critic": 5}
"""By model; 5 is Table I's number."""
MOST_WORKERS_OF_ONE_THREAD = {"mlp": 32, "gpt2_critic": 2}
"""By model; a GPT-2 critic on one core keeps a second worker waiting already."""
MINIBATCHES, NUM_ENVS = 16, 16


class Learner(NamedTuple):
    """Where learning happens."""

    name: str
    resources: dict[str, Any]


class Sizes(NamedTuple):
    worker_counts: tuple[int, ...]
    learners: tuple[Learner, ...]
    """The first is measured with each number of workers, the others with the greatest."""
    steps_per_worker: int = 2048
    iterations: int = 1
    repeats: int = 3


def sizes_of_machine() -> Sizes:
    """Workers up to three fourths of the cores, at least two; the learner needs some, too."""
    import torch  # only where something is measured: the tables need none

    cores = num_cores()
    learners = [Learner("one on a CPU", {})]
    if cores >= 8:
        learners.append(Learner("two on CPUs", {"num_learners": 2}))
    if torch.cuda.is_available():
        learners.append(Learner("one on a GPU", {"num_gpus": 1}))
    counts = tuple(n for n in (1, 2, 4, 8, 12, 24) if n <= max(2, 3 * cores // 4))
    return Sizes(counts, tuple(learners))


QUICK = Sizes((1,), (Learner("one on a CPU", {}),), 64, iterations=1, repeats=1)


def measure(open_subject: OpenSubject, quick: bool) -> Raw:
    """By model and learner, for every number of workers: rates and times of every repeat."""
    sizes = QUICK if quick else sizes_of_machine()
    return {
        "cores": num_cores(),
        "steps_per_worker": sizes.steps_per_worker,
        "training": {model: _measure(open_subject, model, sizes) for model in NUM_EPOCHS},
    }


def _measure(open_subject: OpenSubject, model: str, sizes: Sizes) -> list[Raw]:
    first, *others = sizes.learners
    places = [(first, n) for n in sizes.worker_counts if n <= MOST_WORKERS_OF_ONE_THREAD[model]]
    places += [(learner, sizes.worker_counts[-1]) for learner in others]
    variants = {f"{learner.name}, {n}": _variant(model, learner, n, sizes) for learner, n in places}
    path = "tests.benchmarks.subjects.trainings:Trainings"
    with open_subject(path, variants=variants) as trainings:
        candidates = {name: partial(trainings.train, name, sizes.iterations) for name in variants}
        samples = interleaved(candidates, sizes.repeats, warmups=1)
    return [
        {"learner": learner.name, "workers": n, "samples": of_place}
        for (learner, n), of_place in zip(places, samples.values(), strict=True)
    ]


def _variant(model: str, learner: Learner, workers: int, sizes: Sizes) -> dict[str, Any]:
    batch = sizes.steps_per_worker * workers
    return {
        "env": {"id": "LunarLander-v3"},
        "model": {"name": model},
        "algorithm": {
            "train_batch_size": batch,
            "minibatch_size": batch // MINIBATCHES,
            "num_epochs": NUM_EPOCHS[model],
        },
        "resources": {
            "num_env_runners": workers,
            "num_envs_per_env_runner": NUM_ENVS,
            **learner.resources,
        },
    }


def tables(raw: Raw) -> list[Table]:
    """One a model."""
    return [_table(name, rows, raw) for name, rows in raw["training"].items()]


def _table(model: str, rows: list[Raw], raw: Raw) -> Table:
    one_worker = _medians(rows[0])["sample_s_per_step"]
    return Table(
        f"Training with more rollout workers, {model}",
        (
            "learner",
            "workers",
            "env steps/s",
            "sampling",
            "actor",
            "critic",
            "model: env steps/s",
            "measured / model",
        ),
        [_row(row, one_worker, raw["cores"]) for row in rows],
        f"LunarLander-v3, {NUM_ENVS} envs and {raw['steps_per_worker']} env steps a worker and "
        f"iteration, {MINIBATCHES} minibatches, {NUM_EPOCHS[model]} epochs, {raw['cores']} cores. "
        f"Sampling, actor and critic in µs per env step. The model: an iteration takes the actor's "
        f"time and then the longest of the critic's, the sampling of one worker divided by the "
        f"workers, and the work of both divided by the cores; the actor's and critic's times are "
        f"the row's own, sampling that of the first row.",
    )


def _row(row: Raw, one_worker: float, cores: int) -> tuple[str, ...]:
    times = _medians(row)
    actor = times["learn_actor_s_per_step"]
    critic = times["learn_s_per_step"] - actor
    on_cpu = 0.0 if row["learner"].endswith("GPU") else critic
    predicted = 1 / predicted_seconds(actor, critic, on_cpu, one_worker, row["workers"], cores)
    return (
        row["learner"],
        str(row["workers"]),
        f"{times['env_steps_per_s']:,.0f}",
        *(f"{1e6 * seconds:.1f}" for seconds in (times["sample_s_per_step"], actor, critic)),
        f"{predicted:,.0f}",
        f"{times['env_steps_per_s'] / predicted:.2f}",
    )


def predicted_seconds(
    actor: float, critic: float, critic_on_cpu: float, one_worker: float, workers: int, cores: int
) -> float:
    """Seconds per env step of training.

    Args:
        actor: of the actor's update, in which workers wait.
        critic: of the critic's, in which they sample.
        critic_on_cpu: the part of it that takes a core.
        one_worker: of sampling with a single worker.
        workers: how many sample.
        cores: of the machine.
    """
    return actor + max(critic, one_worker / workers, (one_worker + critic_on_cpu) / cores)


def _medians(row: Raw) -> dict[str, float]:
    return {key: median(s[key] for s in row["samples"]) for key in row["samples"][0]}
