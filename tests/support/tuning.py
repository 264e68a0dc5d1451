"""Tuning experiments of seconds, and an observer that keeps what it is told."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import yaml

from rl_service.tuning.experiment import tune_experiment
from rl_service.tuning.observer import TuneResult
from rl_service.tuning.plan import TuningPlan, load_plan, new_experiment
from rl_service.tuning.trial_view import TrialView
from tests.support.rays import command_environment

NAME = "cartpole-v1-mlp-ppo"
"""Of the best policy in the registry."""
PATIENCE_S = 240.0

SMALL: dict[str, Any] = {
    "settings": {
        "env": {"id": "CartPole-v1", "max_episode_steps": 30},
        "model": {"name": "mlp", "hidden_sizes": [8], "critic_hidden_sizes": [8]},
        "algorithm": {
            "name": "ppo",
            "train_batch_size": 64,
            "minibatch_size": 32,
            "num_epochs": 1,
            "lr_schedule": "constant",
        },
        "resources": {"num_env_runners": 0, "num_envs_per_env_runner": 2},
        "stop": {"iterations": 3},
        "evaluation": {"interval": 1, "num_episodes": 1, "final_num_episodes": 2},
        "seed": 3,
    },
    "search_space": {"algorithm.actor_lr": {"loguniform": [1e-4, 1e-2]}},
    "num_samples": 2,
}


def write_tuning_file(path: Path, **changed: Any) -> Path:
    """`SMALL` with other top-level keys; those under `settings` are merged group by group,
    and a group with a name is taken whole."""
    settings = dict(SMALL["settings"])
    for group, values in changed.pop("settings", {}).items():
        is_group = isinstance(values, dict) and "name" not in values
        settings[group] = {**settings.get(group, {}), **values} if is_group else values
    content = SMALL | changed | {"settings": settings}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def small_plan(folder: Path, **changed: Any) -> TuningPlan:
    """The plan of such a file, whose policies and registry go to the folder."""
    settings = dict(changed.pop("settings", {}))
    tracking = {"output_dir": str(folder), "tensorboard": False}
    settings["tracking"] = tracking | settings.get("tracking", {})
    return load_plan(write_tuning_file(folder / "small.yaml", settings=settings, **changed))


class Watcher:
    """Keeps messages and the last state of each trial."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.trials: list[TrialView] = []
        self.max_concurrent = 0

    def on_start(self, plan: TuningPlan, experiment: str, max_concurrent: int) -> None:
        self.max_concurrent = max_concurrent

    def on_trials(self, trials: Sequence[TrialView]) -> None:
        self.trials = list(trials)

    def on_message(self, text: str) -> None:
        self.messages.append(text)

    def on_finish(self, result: TuneResult, trials: Sequence[TrialView]) -> None:
        self.trials = list(trials)


def run_plan(plan: TuningPlan, storage: str, watcher: Watcher | None = None) -> TuneResult:
    """A new experiment, to its end."""
    experiment = new_experiment(plan, storage)
    return tune_experiment(plan, experiment, watcher or Watcher(), resume=False)


def iterations(experiment: str) -> dict[str, list[dict[str, Any]]]:
    """What led to the newest checkpoint of each trial's seed 3, by the trial's id."""
    files = sorted(Path(experiment).glob("trial_*/checkpoint_*/seed_3/progress.jsonl"))
    return {
        file.parents[2].name.removeprefix("trial_"): [
            json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()
        ]
        for file in files
    }


class NaNReturns(gym.Env[Any, Any]):
    """Episodes of three steps whose last two pay NaN where the kwargs ask for it."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, broken: bool = False) -> None:
        self._reward = math.nan if broken else 1.0
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        reward = 1.0 if self._steps == 1 else self._reward
        return self.observation_space.sample(), reward, self._steps == 3, False, {}


def start_command(*arguments: str, cwd: Path, ray_address: str = "") -> subprocess.Popen[str]:
    """`rl-service tune` in a process."""
    return subprocess.Popen(
        [sys.executable, "-m", "rl_service.cli", "tune", *arguments],
        cwd=cwd,
        env=command_environment(ray_address),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_command(*arguments: str, cwd: Path, ray_address: str = "") -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    process = start_command(*arguments, cwd=cwd, ray_address=ray_address)
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err
