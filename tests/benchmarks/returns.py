"""Whether speed was bought with learning: final returns beside Stable-Baselines3's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from statistics import mean, stdev
from typing import Any, NamedTuple

from tests.benchmarks.child import OpenSubject
from tests.benchmarks.record import Raw
from tests.benchmarks.tables import Table

OURS, THEIRS = "rl-service", "Stable-Baselines3"
SUBJECTS = {
    OURS: "tests.benchmarks.subjects.learned:OurLearning",
    THEIRS: "tests.benchmarks.subjects.sb3:SB3Learning",
}


class Sizes(NamedTuple):
    env_id: str = "LunarLander-v3"
    env_steps: int = 500_000
    seeds: tuple[int, ...] = (1, 2, 3)
    num_envs: int = 16
    train_batch_size: int = 4096
    minibatch_size: int = 256
    num_epochs: int = 10
    num_episodes: int = 20
    parallel: int = 2
    """Runs side by side: nothing is timed."""


QUICK = Sizes("CartPole-v1", 512, (1,), 4, 256, 64, 2, num_episodes=2, parallel=1)


def measure(open_subject: OpenSubject, quick: bool) -> Raw:
    """By library, the returns of the final policy's episodes for each seed."""
    sizes = QUICK if quick else Sizes()
    jobs = [(library, seed) for seed in sizes.seeds for library in SUBJECTS]
    with ThreadPoolExecutor(sizes.parallel) as pool:
        found = pool.map(lambda job: _learn(open_subject, *job, sizes), jobs)
        scores = dict(zip(jobs, found, strict=True))
    return {
        "sizes": sizes._asdict(),
        "returns": {
            library: {str(seed): scores[library, seed] for seed in sizes.seeds}
            for library in SUBJECTS
        },
    }


def _learn(open_subject: OpenSubject, library: str, seed: int, sizes: Sizes) -> list[float]:
    asked: dict[str, Any] = {
        "env_id": sizes.env_id,
        "num_envs": sizes.num_envs,
        "train_batch_size": sizes.train_batch_size,
        "minibatch_size": sizes.minibatch_size,
        "num_epochs": sizes.num_epochs,
        "seed": seed,
    }
    with open_subject(SUBJECTS[library], **asked) as subject:
        returns: list[float] = subject.learn(sizes.env_steps, sizes.num_episodes)
    return returns


def tables(raw: Raw) -> list[Table]:
    """One row a library."""
    sizes = raw["sizes"]
    return [
        Table(
            f"Return after {sizes['env_steps']:,} env steps of {sizes['env_id']}, MLP",
            ("library", *(f"seed {seed}" for seed in sizes["seeds"]), "mean ± deviation"),
            [_row(library, by_seed) for library, by_seed in raw["returns"].items()],
            f"{sizes['num_episodes']} deterministic episodes of the final policy, episode i from "
            f"seed + i. Both: 64-64 tanh, {sizes['num_envs']} envs in one process, batch "
            f"{sizes['train_batch_size']}, minibatch {sizes['minibatch_size']}, "
            f"{sizes['num_epochs']} epochs, learning rate 3e-4, γ 0.99, λ 0.95, no entropy term; "
            f"raw value targets.",
        )
    ]


def _row(library: str, by_seed: dict[str, list[float]]) -> tuple[str, ...]:
    means = [mean(returns) for returns in by_seed.values()]
    spread = stdev(means) if len(means) > 1 else 0.0
    return (library, *(f"{m:.1f}" for m in means), f"{mean(means):.1f} ± {spread:.1f}")
