"""Whether speed was bought with learning: final returns beside plain torch and SB3."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import mean, stdev
from typing import Any, NamedTuple

from tests.benchmarks.against_sb3 import SUBJECT, ppo_training
from tests.benchmarks.child import OpenSubject
from tests.benchmarks.record import Raw
from tests.benchmarks.tables import Table

LR = 3e-4
"""Stable-Baselines3's default, for both."""


class Sizes(NamedTuple):
    env_id: str
    env_steps: int = 500_000
    seeds: tuple[int, ...] = (100, 200, 300, 400, 500)
    num_envs: int = 16
    train_batch_size: int = 4096
    minibatch_size: int = 256
    num_epochs: int = 10
    num_episodes: int = 20
    parallel: int = 2
    """Runs side by side: nothing is timed."""


FULL = (Sizes("LunarLander-v3"), Sizes("HalfCheetah-v4"))
QUICK = (Sizes("CartPole-v1", 512, (1,), 4, 256, 64, 2, num_episodes=2, parallel=1),)


def measure(open_subject: OpenSubject, quick: bool) -> Raw:
    """By environment and library, the returns of the final policy's episodes for each seed."""
    return {
        sizes.env_id: {
            "sizes": sizes._asdict(),
            "returns": side_by_side(LEARN, open_subject, sizes),
        }
        for sizes in (QUICK if quick else FULL)
    }


def side_by_side(
    learn: dict[str, Callable[[OpenSubject, int, Any], Any]], open_subject: OpenSubject, sizes: Any
) -> dict[str, dict[str, Any]]:
    """By library and seed, what came of each run, `sizes.parallel` of which go on at a time."""
    jobs = [(library, seed) for seed in sizes.seeds for library in learn]
    with ThreadPoolExecutor(sizes.parallel) as pool:
        found = pool.map(lambda job: learn[job[0]](open_subject, job[1], sizes), jobs)
        by_job = dict(zip(jobs, found, strict=True))
    return {
        library: {str(seed): by_job[library, seed] for seed in sizes.seeds} for library in learn
    }


def _ours(
    open_subject: OpenSubject,
    seed: int,
    sizes: Sizes,
    *,
    backend: str = "gymnasium",
    compiled: bool = True,
) -> list[float]:
    run = {
        "env": {"id": sizes.env_id, "backend": backend},
        "model": {"name": "mlp"},
        "algorithm": {
            "actor_lr": LR,
            "critic_lr": LR,
            "train_batch_size": sizes.train_batch_size,
            "minibatch_size": sizes.minibatch_size,
            "num_epochs": sizes.num_epochs,
            "normalize_values": False,
        },
        "resources": {"num_env_runners": 0, "num_envs_per_env_runner": sizes.num_envs},
        "seed": seed,
    }
    path = "tests.benchmarks.subjects.learned:Learned"
    with open_subject(path, variants={"run": run}, compiled=compiled) as subject:
        returns: list[float] = subject.learn("run", sizes.env_steps, sizes.num_episodes)
    return returns


def _theirs(open_subject: OpenSubject, seed: int, sizes: Sizes) -> list[float]:
    training = ppo_training(sizes.env_id, sizes)
    with open_subject(SUBJECT, vec_env="dummy", seed=seed, **training) as subject:
        returns: list[float] = subject.learn(sizes.env_steps, sizes.num_episodes)
    return returns


LEARN = {
    "rl-service": _ours,
    "rl-service, EnvPool": partial(_ours, backend="envpool"),
    "rl-service, torch": partial(_ours, compiled=False),
    "Stable-Baselines3": _theirs,
}
"""By library, how one run is trained and scored."""


def tables(raw: Raw) -> list[Table]:
    """One an environment, one row a library."""
    return [_table(**of_env) for of_env in raw.values()]


def _table(sizes: Raw, returns: Raw) -> Table:
    return Table(
        f"Return after {sizes['env_steps']:,} env steps of {sizes['env_id']}, MLP",
        ("library", *(f"seed {seed}" for seed in sizes["seeds"]), "mean ± deviation"),
        [_row(library, by_seed) for library, by_seed in returns.items()],
        f"{sizes['num_episodes']} deterministic episodes of the final policy, episode i from "
        f"seed + i, in gymnasium. All: 64-64 tanh, {sizes['num_envs']} envs in one process, batch "
        f"{sizes['train_batch_size']}, minibatch {sizes['minibatch_size']}, "
        f"{sizes['num_epochs']} epochs, learning rate 3e-4, γ 0.99, λ 0.95, no entropy term; "
        f"raw value targets, no normalisation. EnvPool: trained on it. Torch: its gradient steps "
        f"instead of machine code.",
    )


def _row(library: str, by_seed: dict[str, list[float]]) -> tuple[str, ...]:
    means = [mean(returns) for returns in by_seed.values()]
    spread = stdev(means) if len(means) > 1 else 0.0
    return (library, *(f"{m:.1f}" for m in means), f"{mean(means):.1f} ± {spread:.1f}")
