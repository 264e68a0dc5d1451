"""Whole training, learning included: ours against other libraries on the same two cores."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from tests.benchmarks.against_sb3 import ppo_training, sb3_candidates
from tests.benchmarks.child import OpenSubject
from tests.benchmarks.peers import (
    ENVIRONMENTS,
    NUM_WORKERS,
    Rates,
    peer_candidates,
    peer_tables,
    plain_training,
)
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
OURS: dict[str, dict[str, Any]] = {"ours": {}, "ours, EnvPool": {"backend": "envpool"}}
"""Our variants, and their settings of `env` besides the id. `ours` has the goals."""
LIMIT, LIMIT_GOAL = "limit", 0.5
"""Of NumPy and torch: see `subjects.limit`."""
SB3 = {"dummy": "SB3 Dummy", "subproc": "SB3 Subproc"}
"""Vector envs of Stable-Baselines3, as they are recorded and as they read."""


class Sizes(NamedTuple):
    environments: tuple[str, ...] = tuple(GOALS)
    num_envs: int = 16
    train_batch_size: int = 4096
    minibatch_size: int = 256
    num_epochs: int = 10
    iterations: int = 3
    """Timed together as one measurement."""
    repeats: int = 3
    warmups: int = 2
    """Measurements thrown away first: long enough for a first episode that a time limit ends, for
    which SBX compiles, too."""


QUICK = Sizes(("CartPole-v1",), 4, 256, 64, 2, iterations=1, repeats=1, warmups=1)


def measure(open_subject: OpenSubject, quick: bool) -> Raw:
    """Per environment, env steps a second of every repeat."""
    sizes = QUICK if quick else Sizes()
    return {env_id: _measure(open_subject, env_id, sizes) for env_id in sizes.environments}


def _measure(open_subject: OpenSubject, env_id: str, sizes: Sizes) -> Raw:
    # EnvPool's variant is for the environments in which others use it, too.
    names = [name for name in OURS if name == "ours" or env_id in ENVIRONMENTS]
    with ExitStack() as stack:
        ours = stack.enter_context(
            open_subject(
                "tests.benchmarks.subjects.trainings:Trainings",
                variants={name: _variant(env_id, OURS[name], sizes) for name in names},
            )
        )
        candidates = {name: partial(ours.train, name, sizes.iterations) for name in names}
        training = ppo_training(env_id, sizes)
        candidates |= sb3_candidates(stack, open_subject, sizes.iterations, **training)
        limit = stack.enter_context(
            open_subject("tests.benchmarks.subjects.limit:Limit", **plain_training(env_id, sizes))
        )
        candidates[LIMIT] = partial(limit.train, sizes.iterations)
        candidates |= peer_candidates(stack, open_subject, sizes.iterations, env_id, sizes)
        return interleaved(candidates, sizes.repeats, warmups=sizes.warmups)


def _variant(env_id: str, env: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
    return {
        "env": {"id": env_id, **env},
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
    """Against Stable-Baselines3 and the other libraries, and where our time goes."""
    sizes = Sizes()
    rates = {env_id: _rates(samples) for env_id, samples in raw.items()}
    return [
        Table(
            "Training against Stable-Baselines3 (env steps/s)",
            ("environment", "ours", *SB3.values(), "ours / better SB3", "goal"),
            [_speed_row(env_id, each) for env_id, each in rates.items()],
            f"PPO, MLP 64-64 tanh for actor and critic apart, {sizes.num_envs} envs in all "
            f"({NUM_WORKERS} rollout workers here), batch {sizes.train_batch_size}, minibatch "
            f"{sizes.minibatch_size}, {sizes.num_epochs} epochs, one torch thread a process, "
            f"learning included.",
        ),
        *peer_tables(_without_limit(rates), tuple(OURS)),
        *_limit_tables(rates),
        Table(
            "Where our time goes (µs per env step)",
            ("environment", "sampling", "learning", "all"),
            [
                (env_id if name == "ours" else f"{env_id}, {name}", *_times(samples[name]))
                for env_id, samples in raw.items()
                for name in OURS
                if name in samples
            ],
            "Sampling is the wait for the rollout workers, learning the time of the learner.",
        ),
    ]


def _without_limit(rates: dict[str, Rates]) -> dict[str, Rates]:
    return {
        env_id: {name: values for name, values in each.items() if name != LIMIT}
        for env_id, each in rates.items()
    }


def _limit_tables(rates: dict[str, Rates]) -> list[Table]:
    rates = {env_id: each for env_id, each in rates.items() if LIMIT in each}
    if not rates:
        return []
    return [
        Table(
            "Training against what NumPy and torch allow (env steps/s)",
            ("environment", "ours", "limit", "ours / limit", "goal"),
            [
                (
                    env_id,
                    f"{median(each['ours']):,.0f}",
                    f"{median(each[LIMIT]):,.0f}",
                    str(ratio(each["ours"], each[LIMIT])),
                    f"{LIMIT_GOAL}",
                )
                for env_id, each in rates.items()
            ],
            "The limit: stepping the environments with a policy in NumPy, and gradient steps "
            "written out in torch without autograd, packed on two cores without a gap.",
        )
    ]


def _rates(samples: Raw) -> Rates:
    """Env steps a second of every candidate, named as it reads."""
    return {
        SB3.get(name, name): [each["env_steps_per_s"] for each in values]
        if name in OURS
        else values
        for name, values in samples.items()
    }


def _speed_row(env_id: str, rates: Rates) -> tuple[str, ...]:
    theirs = {name: rates[name] for name in SB3.values()}
    return (
        env_id,
        *(f"{median(values):,.0f}" for values in (rates["ours"], *theirs.values())),
        str(ratio(rates["ours"], theirs[best(theirs)])),
        f"{GOALS[env_id]:.1f}",
    )


def _times(ours: list[dict[str, float]]) -> tuple[str, ...]:
    sampling, learning, rate = (
        median(sample[key] for sample in ours)
        for key in ("sample_s_per_step", "learn_s_per_step", "env_steps_per_s")
    )
    return tuple(f"{1e6 * seconds:.0f}" for seconds in (sampling, learning, 1 / rate))
