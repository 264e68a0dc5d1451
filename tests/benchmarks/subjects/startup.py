"""The start of a training, and of a worker in place of another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rl_service.runtime.ray_session import ray_session
from rl_service.training.trainer import Trainer
from tests.benchmarks.subjects.settings import benchmark_settings
from tests.support.rays import worker_pids

ROOT = Path(__file__).parents[3]
PATIENCE_S = 180.0


class Startup:
    """Each start is a command of its own."""

    def close(self) -> None:
        pass

    def first_iteration(self) -> float:
        """Seconds from the command of `make train` to its first iteration."""
        environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
        with tempfile.TemporaryDirectory(prefix="rlb") as folder:
            started = time.monotonic()
            process = subprocess.Popen(
                [sys.executable, "-m", "rl_service.cli", "train", "--config", "quickstart"],
                cwd=folder,
                env={**environment, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                while not list(Path(folder).glob("runs/*/*/progress.jsonl")):
                    assert process.poll() is None, "the training ended"
                    assert time.monotonic() < started + PATIENCE_S
                    time.sleep(0.01)
                return time.monotonic() - started
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait()

    def replacements(self, kills: int) -> list[float]:
        """Seconds from each kill of a worker until all are ready again."""
        settings = benchmark_settings(
            {
                "env": {"id": "CartPole-v1"},
                "model": {"name": "mlp"},
                "algorithm": {"train_batch_size": 2048, "minibatch_size": 128},
                "resources": {"num_env_runners": 2, "num_envs_per_env_runner": 8},
            }
        )
        took = []
        with ray_session(settings.resources):
            trainer = Trainer(settings)
            try:
                fleet = trainer.algo.fleet
                assert fleet is not None
                for kill in range(1, kills + 1):
                    trainer.iterate()
                    os.kill(worker_pids()[0], signal.SIGKILL)
                    killed = time.monotonic()
                    while fleet.num_restarts < kill or len(fleet.ready) < 2:
                        assert time.monotonic() < killed + PATIENCE_S
                        trainer.iterate()
                    took.append(time.monotonic() - killed)
            finally:
                trainer.close()
        return took
