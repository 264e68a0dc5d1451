"""Runs that are killed, changed, locked, cut short by a full disk or sent to a small cluster."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray
import torch

from rl_service.training.run import Run
from tests.conftest import Command
from tests.support.rays import command_environment

TINY = (
    "-m mlp -e CartPole-v1 --set resources.num_env_runners=0 --set env.max_episode_steps=20 "
    "--set algorithm.train_batch_size=64 --set algorithm.minibatch_size=64 "
    "--set algorithm.num_epochs=1 --set tracking.checkpoint_interval=4 "
    "--set evaluation.num_episodes=1 --set evaluation.final_num_episodes=1 "
)


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(ray_address: str) -> Iterator[Start]:
    """`rl-service train` on the Ray of these tests, since starting one takes seconds."""
    processes = []

    def run(*arguments: str, cwd: Path, address: str | None = None) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "rl_service.cli", "train", *arguments],
            cwd=cwd,
            env=command_environment(address or ray_address),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield run
    for process in processes:  # those that a failed test left
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def refusal(process: subprocess.Popen[str], status: int = 2) -> str:
    returncode, _, err = ended(process)
    [line] = err.splitlines()
    assert (returncode, line.startswith("error: ")) == (status, True), err
    return line


def run_in(folder: Path, num_rows: int, process: subprocess.Popen[str]) -> Run:
    """The run in a folder, as soon as it has done some iterations."""
    deadline = time.monotonic() + 120
    while True:
        for progress in folder.glob("runs/*/*/progress.jsonl"):
            if progress.read_bytes().count(b"\n") >= num_rows:
                return Run.open(progress.parent)
        assert process.poll() is None, ended(process)
        assert time.monotonic() < deadline
        time.sleep(0.01)


def final_weights(run: Run) -> dict[str, torch.Tensor]:
    checkpoint = run.checkpoints.latest()
    assert checkpoint is not None
    state = torch.load(checkpoint / "training_state.pt", weights_only=True)
    assert state["iteration"] == run.settings.stop.iterations
    return dict(_tensors("", state["learner"]))


def _tensors(name: str, value: object) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list | tuple) else items
    for key, inner in items:
        yield from _tensors(f"{name}.{key}", inner)


def test_a_killed_and_resumed_run_equals_an_unbroken_one_and_nobody_else_may_resume_it(
    tmp_path: Path, start: Start
) -> None:
    for name in ("broken", "unbroken"):
        (tmp_path / name).mkdir()
    arguments = [*TINY.split(), "--set", "evaluation.interval=3", "-ne", "90"]
    unbroken = start(*arguments, cwd=tmp_path / "unbroken")
    broken = start(*arguments, cwd=tmp_path / "broken")
    run = run_in(tmp_path / "broken", 6, broken)
    broken.send_signal(signal.SIGSTOP)  # in mid-run until the other has looked
    second = start("--resume", str(run.path), cwd=tmp_path)
    assert "is in progress in another process" in refusal(second)
    broken.kill()
    ended(broken)
    assert 6 <= len(run.read_progress()) < 90

    assert ended(start("--resume", str(run.path), cwd=tmp_path))[0] == 0
    assert ended(unbroken)[0] == 0
    assert [row["training_iteration"] for row in run.read_progress()] == list(range(1, 91))
    [config] = tmp_path.glob("unbroken/runs/*/*/config.yaml")
    expected, found = final_weights(Run.open(config.parent)), final_weights(run)
    assert expected.keys() == found.keys()
    assert len(expected) > 8
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []


def test_a_resumed_run_keeps_its_new_length_and_numbers_and_lists_no_iteration_twice(
    tmp_path: Path, start: Start
) -> None:
    stop = "--set stop.time_s=0.001 --set stop.episode_return_mean=1000 --set evaluation.interval=0"
    assert ended(start(*TINY.split(), *stop.split(), cwd=tmp_path))[0] == 0
    [config] = tmp_path.glob("runs/*/*/config.yaml")
    run = Run.open(config.parent)
    assert len(run.read_progress()) == 1  # the time is over
    shutil.rmtree(run.checkpoints.path)  # as after a kill before the first one

    changes = ["-ne", "3", "--set", "algorithm.actor_lr=1e-5"]
    status, out, _ = ended(start("--resume", str(run.path), *changes, "--json", cwd=tmp_path))
    result = json.loads(out.splitlines()[-1])
    assert (status, result["iterations"]) == (0, 3)
    assert [row["training_iteration"] for row in run.read_progress()] == [1, 2, 3]
    assert "algorithm.actor_lr is 1e-05 from here on (was " in out
    settings = Run.open(run.path).settings
    assert (settings.stop.iterations, settings.stop.time_s) == (3, None)
    assert settings.algorithm.actor_lr == 1e-5
    assert Run.open(run.path).bundle_path == run.bundle_path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4M", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted without root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_fills_up_ends_a_run_with_one_line_and_a_whole_checkpoint(
    small_disk: Path, start: Start
) -> None:
    process = start(*TINY.split(), "--set", "evaluation.interval=0", "-ne", "5000", cwd=small_disk)
    run = run_in(small_disk, 5, process)
    with (small_disk / "filler").open("wb", buffering=0) as filler:
        process.send_signal(signal.SIGSTOP)
        while shutil.disk_usage(small_disk).free:
            filler.write(bytes(min(4096, shutil.disk_usage(small_disk).free)))
        process.send_signal(signal.SIGCONT)
    line = refusal(process)
    assert "the disk is full; free some space" in line
    assert run.checkpoints.latest() is not None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_start_is_one_line_and_status_130(
    tmp_path: Path, start: Start, number: signal.Signals
) -> None:
    process = start(*TINY.split(), cwd=tmp_path)
    while not list(tmp_path.glob("runs/*/*/log.txt")):
        time.sleep(0.01)
    process.send_signal(number)
    [config] = tmp_path.glob("runs/*/*/config.yaml")
    line = refusal(process, status=130)
    assert (
        f"interrupted; continue from what is saved with rl-service train --resume {config.parent}"
        in line
    )


def test_clusters_that_do_not_answer_or_are_too_small_are_refused_with_the_numbers(
    tmp_path: Path, start: Start
) -> None:
    many = ["-e", "CartPole-v1", "-m", "mlp", "--set", "resources.num_env_runners=3"]
    too_small = start(*many, cwd=tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    silent = start(*many, cwd=tmp_path, address=f"127.0.0.1:{port}")
    assert f"no Ray cluster answers at RAY_ADDRESS=127.0.0.1:{port}" in refusal(silent)
    assert "need 3 CPUs, and the cluster at RAY_ADDRESS=" in (line := refusal(too_small))
    assert "has 2; use at most 2" in line


def test_the_log_of_a_run_is_named_before_ray_is_connected(
    tmp_path: Path, rl_service: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray.shutdown()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # where nobody answers
    done = rl_service("train", *TINY.split())
    [log] = tmp_path.glob("runs/*/*/log.txt")
    assert (done.status, done.out.splitlines()[0]) == (2, f"log: {log.relative_to(tmp_path)}")
