"""Local clusters as a user starts them, of two nodes or scaling, and a project to submit from."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rl_service.cluster.nodes import kill_processes
from rl_service.cluster.state import LocalCluster

ROOT = Path(__file__).parents[2]
WANDB_KEY = "0123456789abcdef-of-these-tests"
PATIENCE_S = 180.0

SETTINGS = """\
env: {id: "probe:ProbeEnv", max_episode_steps: 20}
model: {name: mlp}
algorithm: {name: ppo, train_batch_size: 64, minibatch_size: 64, num_epochs: 1}
resources: {num_env_runners: 2}
stop: {iterations: 2}
evaluation: {interval: 0, num_episodes: 1, final_num_episodes: 1}
tracking: {checkpoint_interval: 1000, tensorboard: false}
"""
STEP_VARIABLE = "RL_SERVICE_PROBE_STEP_S"
LONG = ("--set", "resources.num_env_runners=0", "-ne", "1000000")
SLOW = {STEP_VARIABLE: "0.005"}
# One worker samples fast enough unless the environment is slow: the critic takes its time.
ELASTIC = """\
env: {id: "probe:SlowEnv", max_episode_steps: 50}
model: {name: mlp}
algorithm:
  {name: ppo, train_batch_size: 256, minibatch_size: 32, num_epochs: 20, critic_num_epochs: 1000}
resources:
  {num_env_runners: 1, max_env_runners: 3, num_envs_per_env_runner: 2, down_delay_iterations: 3}
stop: {iterations: 100000}
evaluation: {interval: 0}
tracking: {checkpoint_interval: 1000, tensorboard: false}
"""
# CartPole that notes where it runs, with which code, and which secrets are there. It can be slow,
# so that a long training leaves the machine to the commands under test.
PROBE = """\
import json, os, pathlib, time, uuid
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

class ProbeEnv(CartPoleEnv):
    def __init__(self):
        super().__init__()
        seen = {
            "node": os.environ.get("RL_SERVICE_CLUSTER_NODE"),
            "code": __file__,
            "package": __import__("rl_service").__file__,
            "wandb_key": os.environ.get("WANDB_API_KEY"),
        }
        folder = pathlib.Path(os.environ["RL_SERVICE_JOB_FOLDER"], "runs", "probes")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{uuid.uuid4()}.json").write_text(json.dumps(seen))

    def step(self, action):
        time.sleep(float(os.environ.get("RL_SERVICE_PROBE_STEP_S", 0)))
        return super().step(action)

class SlowEnv(CartPoleEnv):
    slow = pathlib.Path(os.environ["RL_SERVICE_JOB_FOLDER"], "slow")

    def step(self, action):
        if self.slow.exists():
            time.sleep(0.005)
        return super().step(action)
"""


class UserCluster:
    """Commands as a user types them, with a home and a project of their own."""

    def __init__(self, folder: Path) -> None:
        self.home, self.project = folder / "home", folder / "project"
        self.project.mkdir()
        (self.project / "probe.py").write_text(PROBE)
        (self.project / "tiny.yaml").write_text(SETTINGS)
        (self.project / "elastic.yaml").write_text(ELASTIC)
        self.processes: list[subprocess.Popen[str]] = []

    def environment(self, **changes: str) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_A")}
        own = {
            "PYTHONPATH": str(ROOT),
            "RL_SERVICE_HOME": str(self.home),
            "WANDB_API_KEY": WANDB_KEY,
            "COLUMNS": "200",
        }
        return {**kept, **own, **changes}

    def ray_environment(self, **changes: str) -> dict[str, str]:
        """For a program whose `ray.init()` is to connect to this cluster."""
        ray = {
            "RAY_ADDRESS": self.state.address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.home / "cluster.token"),
        }
        return self.environment(**ray, **changes)

    def start(self, *arguments: str, **changes: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "rl_service.cli", *arguments],
            cwd=self.project,
            env=self.environment(**changes),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def run(self, *arguments: str, **changes: str) -> tuple[int, str, str]:
        """Exit status, standard output and standard error."""
        process = self.start(*arguments, **changes)
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out, err

    def ask(self, *arguments: str) -> Any:
        """The object that a command prints with `--json`."""
        status, out, err = self.run(*arguments, "--json")
        assert status == 0, out + err
        return json.loads(out.splitlines()[-1])

    def refusal(self, *arguments: str, **changes: str) -> str:
        """The one line of a command that refuses."""
        status, out, err = self.run(*arguments, **changes)
        assert (status, out) == (2, ""), out + err
        [line] = err.splitlines()
        assert line.startswith("error: ")
        return line

    @property
    def state(self) -> LocalCluster:
        return LocalCluster.model_validate_json((self.home / "cluster.json").read_text())

    @property
    def token(self) -> str:
        return (self.home / "cluster.token").read_text()

    def api(self, path: str) -> str:
        """What the dashboard says to whoever has the token."""
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.get(self.state.dashboard_url + path, headers=headers, timeout=30.0).text

    def nodes(self) -> list[str]:
        """Names of the nodes that are alive."""
        return [node["name"] for node in self.ask("cluster", "status")["nodes"] if node["alive"]]

    def kill_node(self, name: str) -> None:
        """Kills a node with all that runs on it, as a power cut would: `worker-1`, `worker-2`, …"""
        assert kill_processes(self.state.id, name)

    def job(self, job_id: str) -> Any:
        return self.ask("jobs", "status", job_id)


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of a condition."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.2)
    return value


@contextlib.contextmanager
def started(command: str, *arguments: str) -> Iterator[UserCluster]:
    """The cluster of `rl-service cluster COMMAND`, until the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix="rl-", dir="/tmp"))
    user = UserCluster(folder)
    try:
        status, out, err = user.run(
            "cluster", command, *arguments, "--port", "0", "--dashboard-port", "0"
        )
        assert status == 0, out + err
        yield user
    finally:
        user.run("cluster", "down")
        for process in user.processes:  # those that a failed test left
            if process.poll() is None:
                process.kill()
            process.communicate()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[UserCluster]:
    with started("up", "--nodes", "2", "--cpus-per-node", "1") as user:
        yield user


@pytest.fixture(scope="module")
def scaling_cluster() -> Iterator[UserCluster]:
    """A head with one CPU, and up to two workers with one each that come and go."""
    with started("autoscale", "--max-nodes", "3", "--idle-timeout-s", "5") as user:
        yield user
