"""Sampling with a language model on one GPU: the learner's process alone, and workers that ask."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from statistics import median
from typing import Any

from tests.benchmarks.machine import num_cores
from tests.benchmarks.record import Raw
from tests.benchmarks.repeats import interleaved, ratio
from tests.benchmarks.subjects.trainings import Trainings
from tests.benchmarks.tables import Table

PRETRAINED = "smollm2-135m"
FINETUNE = ("head", "lora")
ALONE, ASKING = "the learner's process", "workers that ask"
NUM_ENVS, ENVS_OF_A_WORKER, VECTOR_STEPS = 50, 64, 10
REPEATS = 5


def measure(quick: bool) -> Raw:
    """Env steps a second of sampling alone, and seconds of an iteration with learning.

    Raises:
        FileNotFoundError: if the model was never fetched.
    """
    num_workers = 1 if quick else max(1, num_cores() // 2)
    places = {
        ALONE: (0, NUM_ENVS, 2 * VECTOR_STEPS * NUM_ENVS),
        ASKING: (num_workers, ENVS_OF_A_WORKER, VECTOR_STEPS * num_workers * ENVS_OF_A_WORKER),
    }
    variants = {
        f"{finetune}, {place}": _variant(finetune, *sizes)
        for finetune in FINETUNE
        for place, sizes in places.items()
    }
    with closing(Trainings(variants)) as trainings:
        candidates = {name: partial(trainings.sample, name) for name in variants}
        sampling = interleaved(candidates, 1 if quick else REPEATS, warmups=1)
        iterations = {name: trainings.train(name, 1) for name in variants if ASKING in name}
    return {"num_workers": num_workers, "sampling": sampling, "iterations": iterations}


def _variant(finetune: str, num_workers: int, num_envs: int, batch: int) -> dict[str, Any]:
    return {
        "env": {"id": "HalfCheetah-v4", "observation_filter": "MeanStdFilter"},
        "model": {
            "name": "llm_policy",
            "pretrained": PRETRAINED,
            "finetune": finetune,
            "hidden_sizes": [64, 64],
            "critic_hidden_sizes": [64, 64],
            "micro_batch_size": 256,
        },
        "algorithm": {"train_batch_size": batch, "minibatch_size": 256, "num_epochs": 1},
        "resources": {
            "num_env_runners": num_workers,
            "num_envs_per_env_runner": num_envs,
            "num_gpus": 1,
            "learner_precision": "bfloat16",
        },
    }


def tables(raw: Raw) -> list[Table]:
    """One row a kind of training and way of sampling."""
    return [
        Table(
            f"Sampling HalfCheetah-v4 with {PRETRAINED} on one GPU",
            ("learns", "who asks the model", "env steps/s", "times", "share of learning"),
            [_row(finetune, place, raw) for finetune in FINETUNE for place in (ALONE, ASKING)],
            f"In bf16, nothing else running. The learner's process steps {NUM_ENVS} envs; "
            f"{raw['num_workers']} workers step {ENVS_OF_A_WORKER} each. Share of learning: of an "
            f"iteration of PPO with one pass over its batch, in minibatches of 256.",
        )
    ]


def _row(finetune: str, place: str, raw: Raw) -> tuple[str, ...]:
    name, sampling = f"{finetune}, {place}", raw["sampling"]
    iteration = raw["iterations"].get(name)
    share = ""
    if iteration is not None:
        sample_s, learn_s = (iteration[f"{part}_s_per_step"] for part in ("sample", "learn"))
        share = f"{100 * learn_s / (sample_s + learn_s):.0f} %"
    times = ratio(sampling[name], sampling[f"{finetune}, {ALONE}"])
    return finetune, place, f"{median(sampling[name]):,.0f}", str(times), share
