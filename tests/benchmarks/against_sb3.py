"""Stable-Baselines3 as the other side of a comparison, in our words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

from tests.benchmarks.child import OpenSubject

SUBJECT = "tests.benchmarks.subjects.sb3:SB3Training"


def sb3_candidates(
    stack: ExitStack, open_subject: OpenSubject, iterations: int, **training: Any
) -> dict[str, Callable[[], float]]:
    """By vector env, a function that trains on and returns env steps a second.

    Args:
        stack: closes them.
        open_subject: opens them.
        iterations: of one measurement.
        **training: of `SB3Training`, all but the vector env.
    """
    opened = {
        vec_env: stack.enter_context(open_subject(SUBJECT, vec_env=vec_env, **training))
        for vec_env in ("dummy", "subproc")
    }
    return {vec_env: partial(theirs.train, iterations) for vec_env, theirs in opened.items()}


def our_candidates(
    trainings: Any, names: Iterable[str], iterations: int
) -> dict[str, Callable[[], float]]:
    """By run of `Trainings`, a function that trains on and returns env steps a second."""

    def rate(name: str) -> float:
        rate: float = trainings.train(name, iterations)["env_steps_per_s"]
        return rate

    return {name: partial(rate, name) for name in names}


def ppo_training(env_id: str, sizes: Any) -> dict[str, Any]:
    """Arguments of `SB3Training` for PPO of our sizes.

    Args:
        env_id: of gymnasium.
        sizes: has `num_envs`, `train_batch_size`, `minibatch_size` and `num_epochs`.
    """
    return {
        "env_id": env_id,
        "num_envs": sizes.num_envs,
        "algorithm": "ppo",
        "arguments": {
            "n_steps": sizes.train_batch_size // sizes.num_envs,
            "batch_size": sizes.minibatch_size,
            "n_epochs": sizes.num_epochs,
        },
        "steps_per_iteration": sizes.train_batch_size,
    }
