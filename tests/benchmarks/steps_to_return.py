"""Env steps that policies that remember need: ours beside sb3-contrib's recurrent PPO."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from tests.benchmarks.against_sb3 import SUBJECT, ppo_training
from tests.benchmarks.child import OpenSubject
from tests.benchmarks.record import Raw
from tests.benchmarks.remembering import LSTM_SIZE
from tests.benchmarks.returns import LR, side_by_side
from tests.benchmarks.tables import Table

DISCOUNTS = {"gamma": 0.999, "gae_lambda": 0.98}
RETURNS = (-100, -50, 0)
Curve = list[tuple[int, float]]
"""Env steps, and the mean return of the last 100 episodes at that time."""


class Sizes(NamedTuple):
    env_id: str = "LunarLanderNoVel-v3"
    env_steps: int = 300_000
    seeds: tuple[int, ...] = (100, 200, 300, 400, 500)
    num_envs: int = 16
    train_batch_size: int = 4096
    minibatch_size: int = 256
    num_epochs: int = 4
    context_length: int = 32
    parallel: int = 2
    """Runs side by side: nothing is timed."""


QUICK = Sizes("CartPoleNoVel-v1", 512, (1,), 4, 256, 64, 2, 8, 1)


def measure(open_subject: OpenSubject, quick: bool) -> Raw:
    """By library and seed, the curve of a run."""
    sizes = QUICK if quick else Sizes()
    return {"sizes": sizes._asdict(), "curves": side_by_side(LEARN, open_subject, sizes)}


def _ours(open_subject: OpenSubject, seed: int, sizes: Sizes) -> Curve:
    run = {
        "env": {"id": sizes.env_id},
        "model": {
            "name": "gpt2_critic",
            "actor_net": "gpt2",
            "actor_context_length": sizes.context_length,
            "context_length": sizes.context_length,
        },
        "algorithm": {
            "actor_lr": LR,
            "critic_lr": LR,
            "gamma": DISCOUNTS["gamma"],
            "lambda_": DISCOUNTS["gae_lambda"],
            "train_batch_size": sizes.train_batch_size,
            "minibatch_size": sizes.minibatch_size,
            "num_epochs": sizes.num_epochs,
        },
        "resources": {"num_env_runners": 0, "num_envs_per_env_runner": sizes.num_envs},
        "seed": seed,
    }
    path = "tests.benchmarks.subjects.learned:Learned"
    with open_subject(path, variants={"run": run}) as subject:
        curve: Curve = subject.curve("run", sizes.env_steps)
    return curve


def _theirs(open_subject: OpenSubject, seed: int, sizes: Sizes) -> Curve:
    training = ppo_training(sizes.env_id, sizes)
    training |= {"algorithm": "recurrent_ppo", "lstm_size": LSTM_SIZE}
    training["arguments"] |= DISCOUNTS
    with open_subject(SUBJECT, vec_env="dummy", seed=seed, **training) as subject:
        curve: Curve = subject.curve(sizes.env_steps)
    return curve


LEARN = {"rl-service, GPT-2": _ours, "sb3-contrib, LSTM": _theirs}
"""By library, how one run is trained."""


def tables(raw: Raw) -> list[Table]:
    """One row a library and return."""
    sizes = raw["sizes"]
    return [
        Table(
            f"Env steps to a return, {sizes['env_id']}",
            ("return", "", *(f"seed {seed}" for seed in sizes["seeds"]), "median"),
            [
                (f"{reached}", library, *_cells([steps_to(c, reached) for c in by_seed.values()]))
                for reached in RETURNS
                for library, by_seed in raw["curves"].items()
            ]
            + [_last_row(library, by_seed) for library, by_seed in raw["curves"].items()],
            f"Steps, in thousands, until the mean return of the last 100 episodes of training "
            f"first reached it; – where that did not happen within {sizes['env_steps']:,}. At the "
            f"end: that mean return after all steps. Both: {sizes['num_envs']} envs in one "
            f"process, batch {sizes['train_batch_size']}, minibatch {sizes['minibatch_size']}, "
            f"{sizes['num_epochs']} epochs, learning rate 3e-4, γ 0.999, λ 0.98, no entropy term. "
            f"Ours: an actor and a critic of one layer of width 64 each, K "
            f"{sizes['context_length']}, values normalised. Theirs: an LSTM of {LSTM_SIZE} for "
            f"the policy and one for the value, each followed by 64-64 tanh.",
        )
    ]


def steps_to(curve: Curve, reached: float) -> float:
    """Env steps to a return; infinity if the run did not get there."""
    return next((float(steps) for steps, value in curve if value >= reached), float("inf"))


def _cells(steps: list[float]) -> list[str]:
    with_median = (*steps, median(steps))
    return [f"{each / 1000:.0f}" if each < float("inf") else "–" for each in with_median]


def _last_row(library: str, by_seed: dict[str, Curve]) -> tuple[str, ...]:
    ends = [curve[-1][1] for curve in by_seed.values()]
    return ("at the end", library, *(f"{end:.0f}" for end in (*ends, median(ends))))
