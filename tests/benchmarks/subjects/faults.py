"""Trainings that undergo faults."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import ray
import yaml
from ray.cluster_utils import Cluster

from rl_service.config.settings import Settings
from rl_service.runtime.forkserver import py_executable
from rl_service.runtime.ray_session import ray_session
from rl_service.training.progress_file import ProgressFile
from rl_service.training.trainer import Trainer
from tests.support import faulty_envs
from tests.support.rays import worker_pids

ROOT = Path(__file__).parents[3]
BATCH = 2048
WORKER_TIMEOUT_S = 5.0
IN_PEACE = 5
"""Iterations before a fault."""
PATIENCE_S = 180.0


class Faults:
    """Each fault hits a training of its own."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="rlf")))
        os.environ["PYTHONPATH"] = str(ROOT)  # of workers, which make the environments

    def close(self) -> None:
        self._stack.close()

    def undergo(self, fault: str) -> dict[str, Any]:
        """Trains in peace, then with the fault until all is as before.

        Args:
            fault: a key of `tests.benchmarks.faults.FAULTS`.
        """
        if fault == "learner killed":
            return self._learner_killed()
        if fault == "node lost":
            with _two_nodes() as lose_node:
                return self._train(lose_node)
        settings = self._settings()
        with ray_session(settings.resources):
            return self._train(self._causes()[fault])

    def _causes(self) -> dict[str, Callable[[], None]]:
        return {
            "worker killed": lambda: os.kill(worker_pids()[0], signal.SIGKILL),
            "worker hung": (self._folder / faulty_envs.HANGS).touch,
            "all workers killed": _kill_all_workers,
            "environment raises": (self._folder / faulty_envs.RAISES).touch,
            "environment returns NaN": (self._folder / faulty_envs.NAN).touch,
        }

    def _settings(self) -> Settings:
        return Settings.model_validate(
            {
                "env": {
                    "id": "tests.support.faulty_envs:Told",
                    "kwargs": {"folder": str(self._folder)},
                    "max_episode_steps": 500,
                },
                "model": {"name": "mlp"},
                "algorithm": {"name": "ppo", "train_batch_size": BATCH, "minibatch_size": 128},
                "resources": {
                    "num_env_runners": 2,
                    "num_envs_per_env_runner": 8,
                    "worker_timeout_s": WORKER_TIMEOUT_S,
                },
                "evaluation": {"interval": 0, "num_episodes": 1, "final_num_episodes": 1},
                "tracking": {"tensorboard": False, "checkpoint_interval": 1},
            }
        )

    def _train(self, cause: Callable[[], None]) -> dict[str, Any]:
        trainer = Trainer(self._settings())
        try:
            before = [trainer.iterate() for _ in range(IN_PEACE)]
            cause()
            started, rows = time.monotonic(), []
            while not rows or not _is_over(rows, before[-1]):
                assert time.monotonic() - started < PATIENCE_S, "it did not get over it"
                rows.append(trainer.iterate())
            return _outcome(before, rows, time.monotonic() - started)
        finally:
            trainer.close()

    def _learner_killed(self) -> dict[str, Any]:
        """By the command, as a user would: killed after some iterations, then resumed."""
        home = self._folder / "run"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        (home / "run.yaml").write_text(yaml.safe_dump(self._settings().model_dump(mode="json")))
        first = _start_command(home, "--config", "run.yaml")
        [path] = _wait(lambda: list(home.glob("runs/*/*/progress.jsonl")))
        progress = ProgressFile(path)
        _wait(lambda: len(progress.read()) > IN_PEACE)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        before = progress.read()
        started = time.monotonic()
        second = _start_command(home, "--resume", str(path.parent))
        _wait(lambda: progress.read()[-1]["training_iteration"] > len(before))
        took = time.monotonic() - started
        second.send_signal(signal.SIGTERM)
        second.wait()
        return _outcome(before, progress.read()[len(before) - 1 :], took)


def _kill_all_workers() -> None:
    for pid in worker_pids():
        os.kill(pid, signal.SIGKILL)


def _start_command(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "rl_service.cli", "train", *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _wait(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


def _is_over(rows: list[dict[str, Any]], before: dict[str, Any]) -> bool:
    """Whether the fault was met and an iteration has been done with all workers since."""
    marks = ("num_worker_restarts", "num_failed_episodes")
    was_met = any(rows[-1][mark] > before[mark] for mark in marks)
    return was_met and len(rows) > 1 and all(row["num_env_runners"] == 2 for row in rows[-2:])


def _outcome(
    before: list[dict[str, Any]], rows: list[dict[str, Any]], recovered_s: float
) -> dict[str, Any]:
    steps = [row["num_env_steps_sampled_lifetime"] for row in [before[-1], *rows]]
    return {
        "in_peace_s": median(row["iteration_time_s"] for row in before[1:]),
        "longest_s": max(row["iteration_time_s"] for row in rows),
        "recovered_s": recovered_s,
        "batches": sorted({b - a for a, b in pairwise(steps) if b > a}),
        "dropped": rows[-1]["num_failed_episodes"],
    }


@contextmanager
def _two_nodes() -> Iterator[Callable[[], None]]:
    """A cluster of two nodes with a CPU each; gives the call that kills one and adds another."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        node = cluster.add_node(num_cpus=1)
        workers = {"py_executable": py_executable()}
        ray.init(address=cluster.address, runtime_env=workers, log_to_driver=False)

        def lose() -> None:
            cluster.remove_node(node, allow_graceful=False)
            cluster.add_node(num_cpus=1)

        yield lose
    finally:
        ray.shutdown()
        cluster.shutdown()
