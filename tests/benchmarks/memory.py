"""Memory of learner and workers: the peak, and what is held after many iterations."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.benchmarks.child import OpenSubject
from tests.benchmarks.record import Raw
from tests.benchmarks.tables import Table

GOAL_GROWTH = 5
MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"name": "mlp"},
    "gpt2_critic": {"name": "gpt2_critic"},
}
SMALL_CRITIC = {"name": "gpt2_critic", "context_length": 16, "n_layer": 1, "n_embd": 32}
_MIB = 2**20
_PATH = "tests.benchmarks.subjects.memory:Memory"


class Sizes(NamedTuple):
    models: tuple[str, ...] = tuple(MODELS)
    num_env_runners: int = 2
    train_batch_size: int = 2048
    small_batch_size: int = 256
    peak_iterations: int = 3
    early: int = 20
    late: int = 200


QUICK = Sizes(("mlp",), 1, 128, 64, peak_iterations=1, early=1, late=3)


def measure(open_subject: OpenSubject, quick: bool) -> Raw:
    """Bytes of each process."""
    sizes = QUICK if quick else Sizes()
    return {
        "peak": {name: _peak(open_subject, MODELS[name], sizes) for name in sizes.models},
        "growth": _growth(open_subject, sizes),
    }


def _peak(open_subject: OpenSubject, model: dict[str, Any], sizes: Sizes) -> Raw:
    algorithm = {"train_batch_size": sizes.train_batch_size, "minibatch_size": 128, "num_epochs": 5}
    with open_subject(_PATH, variants={"run": _variant(model, algorithm, sizes)}) as subject:
        subject.train("run", sizes.peak_iterations)
        peak: Raw = subject.memory("run")
        return peak


def _growth(open_subject: OpenSubject, sizes: Sizes) -> Raw:
    algorithm = {"train_batch_size": sizes.small_batch_size, "minibatch_size": 64, "num_epochs": 2}
    with open_subject(_PATH, variants={"run": _variant(SMALL_CRITIC, algorithm, sizes)}) as subject:
        subject.train("run", sizes.early)
        early = subject.memory("run")
        subject.train("run", sizes.late - sizes.early)
        return {
            "iterations": [sizes.early, sizes.late],
            "early": early,
            "late": subject.memory("run"),
        }


def _variant(model: dict[str, Any], algorithm: dict[str, int], sizes: Sizes) -> dict[str, Any]:
    return {
        "env": {"id": "LunarLander-v3"},
        "model": model,
        "algorithm": algorithm,
        "resources": {
            "num_env_runners": sizes.num_env_runners,
            "num_envs_per_env_runner": 8,
        },
    }


def tables(raw: Raw) -> list[Table]:
    """Peaks and growth."""
    early, late = raw["growth"]["early"], raw["growth"]["late"]
    first, last = raw["growth"]["iterations"]
    return [
        Table(
            "Peak memory (MiB resident)",
            ("model", *raw["peak"]["mlp"]),
            [
                (model, *(f"{each['peak'] / _MIB:.0f}" for each in processes.values()))
                for model, processes in raw["peak"].items()
            ],
            "LunarLander-v3, batch 2048, minibatch 128, 5 epochs, 8 envs a worker. Libraries, "
            "shared between processes, are counted in each.",
        ),
        Table(
            f"Memory at iteration {first} and {last} (MiB; goal: growth below {GOAL_GROWTH}%)",
            ("process", "resident", "later", "growth", "private", "later", "growth"),
            [
                (
                    name,
                    *_growth_cells(early[name]["resident"], late[name]["resident"]),
                    *_growth_cells(early[name]["private"], late[name]["private"]),
                )
                for name in early
            ],
            "A small GPT-2 critic on LunarLander-v3. Resident counts pages of Ray's object store "
            "once touched; private does not.",
        ),
    ]


def _growth_cells(early: int, late: int) -> tuple[str, str, str]:
    return f"{early / _MIB:.0f}", f"{late / _MIB:.0f}", f"{100 * (late / early - 1):+.1f}%"
