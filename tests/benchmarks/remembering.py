"""Policies that remember, learning included: ours against sb3-contrib's recurrent PPO."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from tests.benchmarks.against_sb3 import our_candidates, ppo_training, sb3_candidates
from tests.benchmarks.child import OpenSubject
from tests.benchmarks.record import Raw
from tests.benchmarks.repeats import best, interleaved, ratio
from tests.benchmarks.tables import Table

GOAL, ACTING_GOAL = 3.0, 5.0
LSTM_SIZE = 64
WORKERS = (0, 2)
WAYS = ("cache", "plain", "last")
ACTORS: dict[str, dict[str, Any]] = {
    "stack": {"name": "mlp", "actor_net": "stack"},
    "gpt2": {"name": "gpt2_critic", "actor_net": "gpt2"},
    "gpt2, K 64": {
        "name": "gpt2_critic",
        "actor_net": "gpt2",
        "actor_context_length": 64,
        "context_length": 64,
    },
}


class Sizes(NamedTuple):
    env_id: str = "LunarLanderNoVel-v3"
    num_envs: int = 16
    train_batch_size: int = 4096
    minibatch_size: int = 256
    num_epochs: int = 4
    iterations: int = 3
    repeats: int = 3
    context_lengths: tuple[int, ...] = (8, 64, 256)
    acting_steps: int = 300


QUICK = Sizes("CartPoleNoVel-v1", 4, 256, 64, 2, 1, repeats=1, context_lengths=(8,), acting_steps=2)


def measure(open_subject: OpenSubject, quick: bool) -> Raw:
    """Env steps a second of each side, and seconds of a step of acting alone."""
    sizes = QUICK if quick else Sizes()
    return {
        "acting": {str(k): _acting(open_subject, k, sizes) for k in sizes.context_lengths},
        "training": _training(open_subject, sizes),
    }


def _acting(open_subject: OpenSubject, context_length: int, sizes: Sizes) -> Raw:
    path = "tests.benchmarks.subjects.acting:Acting"
    with open_subject(path, context_length=context_length, num_envs=sizes.num_envs) as subject:
        candidates = {
            way: partial(subject.seconds_per_step, sizes.acting_steps, way) for way in WAYS
        }
        return interleaved(candidates, sizes.repeats, warmups=1)


def _training(open_subject: OpenSubject, sizes: Sizes) -> Raw:
    variants = {
        f"{name}, {workers} workers": _variant(model, workers, sizes)
        for name, model in ACTORS.items()
        for workers in WORKERS
    }
    with ExitStack() as stack:
        path = "tests.benchmarks.subjects.trainings:Trainings"
        ours = stack.enter_context(open_subject(path, variants=variants))
        candidates = our_candidates(ours, variants, sizes.iterations)
        training = ppo_training(sizes.env_id, sizes)
        training |= {"algorithm": "recurrent_ppo", "lstm_size": LSTM_SIZE}
        theirs = sb3_candidates(stack, open_subject, sizes.iterations, **training)
        candidates |= {f"SB3 {vec_env}": train for vec_env, train in theirs.items()}
        return interleaved(candidates, sizes.repeats, warmups=1)


def _variant(model: dict[str, Any], workers: int, sizes: Sizes) -> dict[str, Any]:
    return {
        "env": {"id": sizes.env_id},
        "model": model,
        "algorithm": {
            "train_batch_size": sizes.train_batch_size,
            "minibatch_size": sizes.minibatch_size,
            "num_epochs": sizes.num_epochs,
        },
        "resources": {
            "num_env_runners": workers,
            "num_envs_per_env_runner": sizes.num_envs // max(1, workers),
        },
    }


def tables(raw: Raw) -> list[Table]:
    """Each of our actors beside the better of theirs, and what the cache saves."""
    return [_training_table(raw["training"]), _acting_table(raw["acting"])]


def _acting_table(raw: Raw) -> Table:
    sizes = Sizes()
    return Table(
        "Acting with a GPT-2 (µs per step of all envs)",
        ("K", "cache", "plain", "only what counts", "plain / cache", "goal"),
        [
            (
                length,
                *(f"{1e6 * median(samples[way]):,.0f}" for way in WAYS),
                str(ratio(samples["plain"], samples["cache"])),
                f"{ACTING_GOAL:g}" if length == "64" else "",
            )
            for length, samples in raw.items()
        ],
        f"One layer of width 64, {sizes.num_envs} envs with 8 numbers each, one torch thread, "
        f"keeping the history included. A new cache for every {sizes.acting_steps} steps. Plain: "
        f"all of the last K steps are recomputed. Only what counts: of these, only what the last "
        f"one looks at, as evaluations and the service do, which have no cache.",
    )


def _training_table(raw: Raw) -> Table:
    sizes = Sizes()
    theirs = {name: values for name, values in raw.items() if name.startswith("SB3")}
    rows = [(name, f"{median(values):,.0f}", "", "") for name, values in theirs.items()]
    for actor in ACTORS:
        ours = {f"{actor}, {n} workers": raw[f"{actor}, {n} workers"] for n in WORKERS}
        rows += [
            (
                name,
                f"{median(values):,.0f}",
                str(ratio(values, theirs[best(theirs)])),
                f"{GOAL:g}" if name == best(ours) else "",
            )
            for name, values in ours.items()
        ]
    return Table(
        f"Policies that remember, {sizes.env_id}",
        ("", "env steps/s", "times the better of theirs", "goal"),
        rows,
        f"PPO, {sizes.num_envs} envs in all, batch {sizes.train_batch_size}, minibatch "
        f"{sizes.minibatch_size}, {sizes.num_epochs} epochs, one torch thread a process, "
        f"learning included. SB3: RecurrentPPO of sb3-contrib, an LSTM of {LSTM_SIZE} for the "
        f"policy and one for the value, each followed by 64-64 tanh. stack: 8 observations, "
        f"MLPs 64-64 tanh. gpt2: an actor and a critic of one layer of width 64 each, K 8 if "
        f"nothing else is said.",
    )
