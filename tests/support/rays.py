"""Rays for tests: one for the whole session, others for tests that need their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray
from ray._private.state import actors

from rl_service.cluster.nodes import command_line
from rl_service.runtime.forkserver import py_executable

WORKERS = {"py_executable": py_executable()}
"""Runtime environment of the session's workers: what they import is imported once."""

ROOT = Path(__file__).parents[2]

_SHARED = """
import sys, ray

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=sys.argv[1])
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


def command_environment(ray_address: str = "", **changes: str) -> dict[str, str]:
    """Variables of a command as a user has them.

    Args:
        ray_address: of the Ray that it is to use; by default it starts its own.
        **changes: further variables.
    """
    kept = {k: v for k, v in os.environ.items() if k != "RAY_AUTH_MODE" or ray_address}
    return {**kept, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": ray_address, **changes}


@contextmanager
def shared_ray() -> Iterator[str]:
    """Ray in a process of its own with two CPUs, for drivers that come and go; its address."""
    folder = tempfile.mkdtemp(prefix="rlt")  # short: Ray's sockets live below it
    process = subprocess.Popen(
        [sys.executable, "-c", _SHARED, folder],
        stdin=subprocess.PIPE,  # it ends with this process, whatever happens
        stdout=subprocess.PIPE,
        text=True,
        env={key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"},
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        ray.shutdown()
        process.communicate()
        shutil.rmtree(folder, ignore_errors=True)


def connect(address: str) -> None:
    """Makes this process a driver there, unless it is one: a second job would import all again."""
    if not ray.is_initialized():
        ray.init(address=address, runtime_env=WORKERS, log_to_driver=False)


@contextmanager
def own_ray(num_gpus: int = 0) -> Iterator[None]:
    """Ray in this process: its own temporary folder, two CPUs, gone at the end."""
    ray.shutdown()
    folder = tempfile.mkdtemp(prefix="rlt")  # short: Ray's sockets live below it
    ray.init(
        num_cpus=2,
        num_gpus=num_gpus,
        include_dashboard=False,
        _temp_dir=folder,
        log_to_driver=False,
    )
    try:
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def worker_pids() -> list[int]:
    """The rollout workers of this process's trainings."""
    return actor_pids("VectorRolloutWorker")


def actor_pids(class_name: str, *, of_all_jobs: bool = False) -> list[int]:
    """Processes of the actors of a class, by default of this process's job."""
    job = ray.get_runtime_context().get_job_id()
    alive = actors(actor_state_name="ALIVE").values()
    found = [a for a in alive if of_all_jobs or a["JobID"] == job]
    # By its title: Tune gives the class another name, and Ray hears of a death a moment later.
    title = f"ray::{class_name}"
    return [a["Pid"] for a in found if command_line(a["Pid"]).startswith(title)]
