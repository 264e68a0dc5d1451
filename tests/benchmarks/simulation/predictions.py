"""What the model says: of the trainings that were measured, and of clusters of any size."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from tests.benchmarks.record import Raw
from tests.benchmarks.simulation.calibration import Regime, busy_speed, times_of
from tests.benchmarks.simulation.pipeline import Cluster, Line, Outcome, Pipeline, Times, ceiling

WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
CHECK_ITERATIONS, ITERATIONS = 20, 3
SATURATED = 0.95
"""Of the learner's ceiling: from there on more workers are not worth it."""
GPU_ACTOR_S, GPU_CRITIC_S = 3.0e-6, 4.1e-6
"""Per env step, on an H100: docs/results/speed.md, the MLP with 8 workers."""


def predict(raw: Raw, cluster: Cluster, worker_counts: tuple[int, ...] = WORKERS) -> Raw:
    """Plain numbers, to be recorded beside those that were measured.

    Args:
        raw: what `calibration.measure` returned.
        cluster: that the curves are of; its cores are as fast as those that were measured.
        worker_counts: points of the curves.
    """
    cluster = replace(cluster, busy_speed=busy_speed(raw))
    return {
        "cluster": {
            "cores_per_node": cluster.cores_per_node,
            "bytes_per_s": cluster.bytes_per_s,
            "latency_s": cluster.latency_s,
        },
        "checks": _checks(raw),
        "curves": _curves(raw, cluster, worker_counts),
    }


def _checks(raw: Raw) -> list[Raw]:
    """Each regime and number of workers, on the one machine that was measured."""
    times = times_of(raw)
    here = Cluster(raw["cores"], max_nodes=1, busy_speed=busy_speed(raw))
    samples = {(t["workers"], t["env_steps"]): t["samples"] for t in raw["trainings"]}
    found = []
    for regime in map(_regime, raw["regimes"]):
        for workers in raw["worker_counts"]:
            batch = regime.batch(workers)
            measured = _measured(samples[workers, batch], batch)
            predicted = _simulate(times, here, workers, raw, batch, CHECK_ITERATIONS)
            found.append(
                {
                    "regime": regime.name,
                    "workers": workers,
                    "env_steps": batch,
                    "measured": measured._asdict(),
                    "predicted": predicted._asdict(),
                }
            )
    return found


def _measured(samples: list[Raw], batch: int) -> Outcome:
    seconds = median(sample["iteration_time_s"] for sample in samples)
    waits = [1.0 - sample["learn_time_s"] / sample["iteration_time_s"] for sample in samples]
    return Outcome(batch / seconds, seconds, median(waits))


def _curves(raw: Raw, cluster: Cluster, worker_counts: tuple[int, ...]) -> list[Raw]:
    """The learner that was measured, and one with a GPU, by regime."""
    times = times_of(raw)
    on_gpu = replace(times, actor=Line(0.0, GPU_ACTOR_S), critic=Line(0.0, GPU_CRITIC_S))
    found = []
    for name, learner in (("CPU", times), ("GPU", on_gpu)):
        for regime in map(_regime, raw["regimes"]):
            points = [
                _point(learner, cluster, n, raw, regime.batch(n), gpu=name == "GPU")
                for n in worker_counts
            ]
            full = (
                p["workers"] for p in points if p["env_steps_per_s"] >= SATURATED * p["ceiling"]
            )
            found.append(
                {
                    "name": f"{name}, {regime.name}",
                    "points": points,
                    "saturates_at": next(full, None),
                }
            )
    return found


def _point(times: Times, cluster: Cluster, workers: int, raw: Raw, batch: int, *, gpu: bool) -> Raw:
    outcome = _simulate(times, cluster, workers, raw, batch, ITERATIONS, gpu=gpu)
    return {"workers": workers, **outcome._asdict(), "ceiling": ceiling(times, batch)}


def _simulate(
    times: Times,
    cluster: Cluster,
    workers: int,
    raw: Raw,
    batch: int,
    iterations: int,
    *,
    gpu: bool = False,
) -> Outcome:
    pipeline = Pipeline(
        times, cluster, num_workers=workers, num_envs=raw["num_envs"], env_steps=batch, gpu=gpu
    )
    return pipeline.run(iterations)


def _regime(plain: Raw) -> Regime:
    return Regime(**plain)
