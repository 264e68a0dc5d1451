"""What tuning costs beyond its trainings: trials beside the same trainings run by `train`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import yaml

from tests.benchmarks.child import OpenSubject
from tests.benchmarks.record import Raw
from tests.benchmarks.tables import Table

ROOT = Path(__file__).parents[2]
KEY = "algorithm.actor_lr"


class Sizes(NamedTuple):
    num_trials: int = 8
    env_steps: int = 61_440
    parallel: int = 2
    repeats: int = 2


QUICK = Sizes(2, 4096, 2, 1)


def measure(open_subject: OpenSubject, quick: bool) -> Raw:
    """Seconds of `rl-service tune`, and of as many `rl-service train`, by turns."""
    sizes = QUICK if quick else Sizes()
    seconds: dict[str, list[float]] = {"tune": [], "train": []}
    for _ in range(sizes.repeats):
        seconds["tune"].append(_tune(sizes))
        seconds["train"].append(_train(sizes))
    return {"sizes": sizes._asdict(), "seconds": seconds}


def _tune(sizes: Sizes) -> float:
    rates = _learning_rates(sizes)
    content = {
        "settings": _settings(sizes),
        "search_space": {KEY: {"choice": rates}},
        "points_to_evaluate": [{KEY: rate} for rate in rates],
        "num_samples": sizes.num_trials,
        "max_concurrent": sizes.parallel,
    }
    with TemporaryDirectory(prefix="rlbt") as folder:
        Path(folder, "search.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
        started = time.perf_counter()
        result = _run(folder, "tune", "search.yaml")
        took = time.perf_counter() - started
    assert result["env_steps"] == sizes.num_trials * sizes.env_steps
    return took


def _train(sizes: Sizes) -> float:
    def one(rate: float) -> Any:
        return _run(folder, "train", "--config", "run.yaml", "--set", f"{KEY}={rate}")

    with TemporaryDirectory(prefix="rlbt") as folder:
        Path(folder, "run.yaml").write_text(yaml.safe_dump(_settings(sizes)), encoding="utf-8")
        started = time.perf_counter()
        with ThreadPoolExecutor(sizes.parallel) as pool:
            results = list(pool.map(one, _learning_rates(sizes)))
        took = time.perf_counter() - started
    assert sum(result["env_steps"] for result in results) == sizes.num_trials * sizes.env_steps
    return took


def _settings(sizes: Sizes) -> dict[str, Any]:
    return {
        "env": {"id": "CartPole-v1"},
        "model": {"name": "mlp", "hidden_sizes": [64, 64], "critic_hidden_sizes": [64, 64]},
        "algorithm": {"name": "ppo", "train_batch_size": 2048, "minibatch_size": 256},
        "resources": {"num_env_runners": 0, "num_envs_per_env_runner": 16},
        "stop": {"env_steps": sizes.env_steps},
        "evaluation": {"interval": 10, "num_episodes": 5, "final_num_episodes": 5},
        "tracking": {"tensorboard": False},
        "seed": 1,
    }


def _learning_rates(sizes: Sizes) -> list[float]:
    """Near each other: trials are to take equally long."""
    return [round(3e-4 + 1e-5 * index, 6) for index in range(sizes.num_trials)]


def _run(folder: str, *arguments: str) -> Any:
    """The object that a command prints, run as a user runs it."""
    done = subprocess.run(
        [sys.executable, "-m", "rl_service.cli", *arguments, "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{arguments[0]} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def tables(raw: Raw) -> list[Table]:
    """One row a way."""
    sizes, seconds = raw["sizes"], raw["seconds"]
    ratios = [tune / train for tune, train in zip(seconds["tune"], seconds["train"], strict=True)]
    rows = [
        (
            "`rl-service tune`, one experiment",
            f"{median(seconds['tune']):.0f}",
            f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        ),
        ("`rl-service train`, one run each", f"{median(seconds['train']):.0f}", "1"),
    ]
    return [
        Table(
            f"{sizes['num_trials']} trainings, {sizes['parallel']} at a time",
            ("way", "seconds in all", "beside `train`"),
            rows,
            f"CartPole-v1, PPO, an MLP, {sizes['env_steps']:,} env steps each, in one process "
            f"each; starting Ray, evaluations and checkpoints included. Turns within each of "
            f"{sizes['repeats']} repeats.",
        )
    ]
