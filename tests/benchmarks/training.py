"""Whole training, learning included: ours against Stable-Baselines3 on the same two cores."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from tests.benchmarks.against_sb3 import ppo_training, sb3_candidates
from tests.benchmarks.child import OpenSubject
from tests.benchmarks.record import Raw
from tests.benchmarks.repeats import best, interleaved, ratio
from tests.benchmarks.tables import Table

GOALS = {
    "CartPole-v1": 1.5,
    "LunarLander-v3": 2.0,
    "HalfCheetah-v4": 1.5,
    "BipedalWalker-v3": 1.5,
}
"""Environments, and the ratio that is asked for."""
NUM_WORKERS = 2


class Sizes(NamedTuple):
    environments: tuple[str, ...] = tuple(GOALS)
    num_envs: int = 16
    train_batch_size: int = 4096
    minibatch_size: int = 256
    num_epochs: int = 10
    iterations: int = 3
    """Timed together as one measurement."""
    repeats: int = 3


QUICK = Sizes(("CartPole-v1",), 4, 256, 64, 2, iterations=1, repeats=1)


def measure(open_subject: OpenSubject, quick: bool) -> Raw:
    """Per environment, env steps a second of every repeat."""
    sizes = QUICK if quick else Sizes()
    return {env_id: _measure(open_subject, env_id, sizes) for env_id in sizes.environments}


def _measure(open_subject: OpenSubject, env_id: str, sizes: Sizes) -> Raw:
    with ExitStack() as stack:
        ours = stack.enter_context(
            open_subject(
                "tests.benchmarks.subjects.trainings:Trainings",
                variants={"ours": _variant(env_id, sizes)},
            )
        )
        candidates = {"ours": partial(ours.train, "ours", sizes.iterations)}
        training = ppo_training(env_id, sizes)
        candidates |= sb3_candidates(stack, open_subject, sizes.iterations, **training)
        return interleaved(candidates, sizes.repeats, warmups=1)


def _variant(env_id: str, sizes: Sizes) -> dict[str, Any]:
    return {
        "env": {"id": env_id},
        "model": {"name": "mlp"},
        "algorithm": {
            "train_batch_size": sizes.train_batch_size,
            "minibatch_size": sizes.minibatch_size,
            "num_epochs": sizes.num_epochs,
        },
        "resources": {
            "num_env_runners": NUM_WORKERS,
            "num_envs_per_env_runner": sizes.num_envs // NUM_WORKERS,
        },
    }


def tables(raw: Raw) -> list[Table]:
    """Against Stable-Baselines3, and where our time goes."""
    sizes = Sizes()
    return [
        Table(
            "Training against Stable-Baselines3 (env steps/s)",
            ("environment", "ours", "SB3 Dummy", "SB3 Subproc", "ours / better SB3", "goal"),
            [_speed_row(env_id, samples) for env_id, samples in raw.items()],
            f"PPO, MLP 64-64 tanh for actor and critic apart, {sizes.num_envs} envs in all "
            f"({NUM_WORKERS} rollout workers here), batch {sizes.train_batch_size}, minibatch "
            f"{sizes.minibatch_size}, {sizes.num_epochs} epochs, one torch thread a process, "
            f"learning included.",
        ),
        Table(
            "Where our time goes (µs per env step)",
            ("environment", "sampling", "learning", "all"),
            [_time_row(env_id, samples["ours"]) for env_id, samples in raw.items()],
            "Sampling is the wait for the rollout workers, learning the time of the learner.",
        ),
    ]


def _speed_row(env_id: str, samples: Raw) -> tuple[str, ...]:
    ours = [sample["env_steps_per_s"] for sample in samples["ours"]]
    theirs = {name: samples[name] for name in ("dummy", "subproc")}
    return (
        env_id,
        f"{median(ours):,.0f}",
        *(f"{median(values):,.0f}" for values in theirs.values()),
        str(ratio(ours, theirs[best(theirs)])),
        f"{GOALS[env_id]:.1f}",
    )


def _time_row(env_id: str, ours: list[dict[str, float]]) -> tuple[str, ...]:
    sampling, learning, rate = (
        median(sample[key] for sample in ours)
        for key in ("sample_s_per_step", "learn_s_per_step", "env_steps_per_s")
    )
    return (env_id, *(f"{1e6 * seconds:.0f}" for seconds in (sampling, learning, 1 / rate)))
