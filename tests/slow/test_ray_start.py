"""A Ray of our own on a machine that is too busy for it: tried once more, then one clear line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl_service.cli.doctor import _ray

ROOT = Path(__file__).parents[2]
# Ray's own clock jumps while a node starts, so that Ray itself gives the node up.
BUSY = """\
import sys, types, time
import ray._private.node as node

first = node.ray._private.services.get_node
left = [int(sys.argv[1])]

def get_node(*arguments):
    if left[0]:
        left[0] -= 1
        raise RuntimeError("not there yet")
    return first(*arguments)

node.ray._private.services.get_node = get_node
clock = types.ModuleType("clock")
clock.__dict__.update({name: getattr(time, name) for name in dir(time) if name[0] != "_"})
clock.monotonic = lambda: time.monotonic() * 1e9
node.time = clock
"""
START = """
import psutil, ray
from rl_service.runtime.ray_session import own_sigterm, start_ray

with own_sigterm():
    start_ray(num_cpus=1, include_dashboard=False)
print(ray.get(ray.remote(lambda: "works").remote()))
names = [process.name() for process in psutil.Process().children(recursive=True)]
print(names.count("raylet"), names.count("gcs_server"))
ray.shutdown()
"""
SERVE = """
from rl_service.cli.app import main
sys.exit(main(["serve", "zoo:lunarlander", "--port", "0"]))
"""


def run(program: str, failures: int, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BUSY + program, str(failures)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_node_that_was_too_slow_is_started_once_more_and_leaves_no_processes(
    tmp_path: Path,
) -> None:
    done = run(START, 1, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["works", "1 1"]


def test_a_machine_that_is_too_slow_twice_is_told_in_one_line(tmp_path: Path) -> None:
    done = run(SERVE, 2, tmp_path)
    assert done.returncode == 2, done.stderr
    [line] = [line for line in done.stderr.splitlines() if not line.startswith("[")]
    assert line.startswith("error: Ray did not start on this machine (The current node timed out")


@pytest.mark.parametrize("command", [["serve", "zoo:lunarlander"], ["train", "-m", "mlp"]])
def test_a_home_that_cannot_be_written_is_named_with_what_helps(
    command: list[str], tmp_path: Path
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": "/dev/null"}
    del environment["RAY_AUTH_MODE"]  # Ray then makes a token
    done = subprocess.run(
        [sys.executable, "-m", "rl_service.cli", *command],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2, done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "make /dev/null/.ray writable, or set HOME to a folder that is" in line


def test_the_doctor_says_so_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.delenv("RAY_AUTH_MODE")
    finding = _ray()
    assert finding.status == "problem"
    assert "make /dev/null/.ray writable, or set HOME" in finding.remedy
