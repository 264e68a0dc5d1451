"""A2C and TRPO, learning included: ours against Stable-Baselines3 and sb3-contrib."""

from __future__ import annotations

from contextlib import ExitStack
from statistics import median
from typing import Any, NamedTuple

from tests.benchmarks.against_sb3 import our_candidates, sb3_candidates
from tests.benchmarks.child import OpenSubject
from tests.benchmarks.record import Raw
from tests.benchmarks.repeats import best, interleaved, ratio
from tests.benchmarks.tables import Table

GOAL = 1.5


class Sizes(NamedTuple):
    environments: tuple[tuple[str, str], ...] = (
        ("a2c", "CartPole-v1"),
        ("a2c", "LunarLander-v3"),
        ("trpo", "CartPole-v1"),
        ("trpo", "HalfCheetah-v4"),
    )
    num_envs: int = 16
    num_steps: int = 8
    """Of each env between two updates of A2C."""
    train_batch_size: int = 2048
    minibatch_size: int = 128
    critic_num_epochs: int = 20
    cg_iterations: int = 15
    iterations: int = 4
    repeats: int = 3


QUICK = Sizes((("a2c", "CartPole-v1"), ("trpo", "CartPole-v1")), 4, 8, 64, 32, 2, 3, 1, 1)


def measure(open_subject: OpenSubject, quick: bool) -> Raw:
    """By algorithm and environment, env steps a second of every repeat."""
    sizes = QUICK if quick else Sizes()
    return {
        f"{algorithm} {env_id}": _measure(open_subject, algorithm, env_id, sizes)
        for algorithm, env_id in sizes.environments
    }


def _measure(open_subject: OpenSubject, algorithm: str, env_id: str, sizes: Sizes) -> Raw:
    with ExitStack() as stack:
        path = "tests.benchmarks.subjects.trainings:Trainings"
        variants = {f"ours, {n} workers": _ours(algorithm, env_id, n, sizes) for n in (0, 2)}
        ours = stack.enter_context(open_subject(path, variants=variants))
        candidates = our_candidates(ours, variants, sizes.iterations)
        theirs = sb3_candidates(
            stack,
            open_subject,
            sizes.iterations,
            env_id=env_id,
            num_envs=sizes.num_envs,
            algorithm=algorithm,
            arguments=_theirs(algorithm, sizes),
            steps_per_iteration=sizes.train_batch_size,
        )
        candidates |= {f"SB3 {vec_env}": train for vec_env, train in theirs.items()}
        return interleaved(candidates, sizes.repeats, warmups=1)


def _ours(algorithm: str, env_id: str, workers: int, sizes: Sizes) -> dict[str, Any]:
    own = {
        "a2c": {"rollout_fragment_length": sizes.num_steps},
        "trpo": {
            "minibatch_size": sizes.minibatch_size,
            "critic_num_epochs": sizes.critic_num_epochs,
            "cg_iterations": sizes.cg_iterations,
        },
    }[algorithm]
    return {
        "env": {"id": env_id},
        "model": {"name": "mlp"},
        "algorithm": {"name": algorithm, "train_batch_size": sizes.train_batch_size, **own},
        "resources": {
            "num_env_runners": workers,
            "num_envs_per_env_runner": sizes.num_envs // max(1, workers),
        },
    }


def _theirs(algorithm: str, sizes: Sizes) -> dict[str, Any]:
    if algorithm == "a2c":
        return {"n_steps": sizes.num_steps}
    return {
        "n_steps": sizes.train_batch_size // sizes.num_envs,
        "batch_size": sizes.minibatch_size,
        "n_critic_updates": sizes.critic_num_epochs,
        "cg_max_steps": sizes.cg_iterations,
    }


def tables(raw: Raw) -> list[Table]:
    """The better of ours beside the better of theirs."""
    sizes = Sizes()
    names = list(next(iter(raw.values())))
    return [
        Table(
            "A2C and TRPO against Stable-Baselines3 and sb3-contrib (env steps/s)",
            ("training", *names, "better of ours / of theirs", "goal"),
            [_row(name, samples) for name, samples in raw.items()],
            f"MLP 64-64 tanh for actor and critic apart, {sizes.num_envs} envs in all, one torch "
            f"thread a process. A2C: an update every {sizes.num_steps} steps of all envs, RMSprop. "
            f"TRPO: batch {sizes.train_batch_size}, {sizes.cg_iterations} CG steps, "
            f"{sizes.critic_num_epochs} critic passes in minibatches of {sizes.minibatch_size}.",
        )
    ]


def _row(training: str, samples: Raw) -> tuple[str, ...]:
    ours = {name: values for name, values in samples.items() if name.startswith("ours")}
    theirs = {name: values for name, values in samples.items() if name not in ours}
    return (
        training,
        *(f"{median(values):,.0f}" for values in samples.values()),
        str(ratio(ours[best(ours)], theirs[best(theirs)])),
        f"{GOAL}",
    )
