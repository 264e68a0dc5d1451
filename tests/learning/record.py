"""What is kept of each run of the queue: docs/results/runs/<row>/<seed>.json.xz."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np

from rl_service.common.files import written_beside
from rl_service.common.metrics import ENV_STEPS
from rl_service.policies.bundle import load_bundle
from rl_service.training.evaluation import evaluate
from rl_service.training.run import Run
from tests.learning.queue import NUM_EPISODES, Row, decisive
from tests.learning.training import ROOT, machine

RUNS = ROOT / "docs" / "results" / "runs"
NUM_POINTS = 200
EPISODES = "episodes"
"""Column: training episodes so far."""
PER_EPISODES = "return_per_episodes"
"""Mean training return of each `Row.episodes_per_point` episodes in turn."""
STEPS = ENV_STEPS
COLUMNS = (
    STEPS,
    "episode_return_mean",
    "episode_return_min",
    "episode_return_max",
    "episode_len_mean",
    "policy_loss",
    "vf_loss",
    "time_total_s",
)
_EVALUATED = "evaluation/episode_return_mean"
Record = dict[str, Any]


def path_of(row: Row, seed: int, folder: Path = RUNS) -> Path:
    """File of one run."""
    return folder / row.name / f"{seed}.json.xz"


def read(row: Row, seed: int, folder: Path = RUNS) -> Record | None:
    """The record of a run; None if there is none with the settings that the row has today."""
    path = path_of(row, seed, folder)
    if not path.exists():
        return None
    record: Record = json.loads(lzma.decompress(path.read_bytes()))
    today = decisive(row.settings(seed))
    same = all(today[key] == value for key, value in record["settings"].items() if key in today)
    return record if same and record["evaluation_seed"] == row.evaluation_seed else None


def read_all(row: Row, folder: Path = RUNS) -> dict[int, Record]:
    """Records by seed, of the seeds that are done."""
    found = {seed: read(row, seed, folder) for seed in row.seeds}
    return {seed: record for seed, record in found.items() if record is not None}


def make(row: Row, seed: int, result: dict[str, Any]) -> Record:
    """Plays the final episodes of a run's best policy and takes what is kept from its folder.

    Args:
        row: of the run.
        seed: of the run.
        result: the `--json` object of its training.
    """
    run, policy = Run.open(result["run"]), load_bundle(Path(result["policy"]))
    first = seed if row.evaluation_seed is None else row.evaluation_seed
    played = evaluate(policy, policy.spec.env, num_episodes=NUM_EPISODES, seed=first)
    environment = json.loads((run.path / "environment.json").read_text(encoding="utf-8"))
    rows, gpus = run.read_progress(), environment["hardware"]["gpus"]
    return {
        "command": row.command().replace("SEED", str(seed)),
        "settings": decisive(run.settings),
        "evaluation_seed": row.evaluation_seed,
        "machine": ", ".join([machine(), *gpus[: run.settings.resources.num_gpus]]),
        "versions": {
            **{name: environment[name] for name in ("rl_service", "python", "git")},
            **environment["packages"],
        },
        "env_steps": result["env_steps"],
        "minutes": round(rows[-1]["time_total_s"] / 60, 2),
        "returns": [round(score, 2) for score in played.returns.tolist()],
        "lengths": played.lengths.tolist(),
        "evaluations": [[r[STEPS], _short(r[_EVALUATED])] for r in rows if _EVALUATED in r],
        "curve": _curve(rows),
        "per_episodes": _per_episodes(run, rows, row.episodes_per_point),
    }


def write(row: Row, seed: int, record: Record, folder: Path = RUNS) -> None:
    """Replaces the record of a run."""
    path = path_of(row, seed, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, separators=(",", ":"), ensure_ascii=False)
    with written_beside(path, lzma.compress(text.encode(), preset=9)) as staged:
        staged.replace(path)


def _curve(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """At most `NUM_POINTS` iterations, the last one among them, as columns."""
    chosen = np.unique(np.linspace(0, len(rows) - 1, NUM_POINTS).round().astype(int))
    episodes = np.cumsum([row["num_episodes"] for row in rows])
    columns = {name: [_short(rows[i].get(name)) for i in chosen] for name in COLUMNS}
    return {**columns, EPISODES: episodes[chosen].tolist()}


def _per_episodes(run: Run, rows: list[dict[str, Any]], each: int | None) -> dict[str, list[Any]]:
    """Means of `each` training episodes in turn, from the checkpoints of all iterations."""
    if each is None:
        return {}
    returns: list[float] = []
    for row in rows:
        if count := row["num_episodes"]:
            folder = run.path / "checkpoints" / f"iteration_{row['training_iteration']:06d}"
            text = (folder / "training_progress.json").read_text(encoding="utf-8")
            recent = json.loads(text)["recent_returns"]
            assert count <= len(recent), "an iteration ended more episodes than a run remembers"
            returns += recent[-count:]
    ends = range(each, len(returns) + 1, each)
    means = [round(float(np.mean(returns[end - each : end])), 2) for end in ends]
    return {EPISODES: list(ends), PER_EPISODES: means}


def _short(value: float | None) -> float | None:
    """Four digits, and all of a whole number."""
    return value if value is None or isinstance(value, int) else float(f"{value:.4g}")
