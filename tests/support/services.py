"""`rl-service serve` as a user starts it, on a port of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rl_service.cluster.nodes import command_line
from rl_service.policies.registry import PolicyRegistry
from rl_service.serving.client import PolicyClient
from tests.conftest import WriteTestBundle, write_untrained_bundle
from tests.support.rays import command_environment

ROOT = Path(__file__).parents[2]
TOKEN = "first-token-of-these-tests"
START_S = 240.0


class Running(NamedTuple):
    """A service under test."""

    url: str
    process: subprocess.Popen[str]
    registry: PolicyRegistry
    token_file: Path
    output: Path

    def client(self, token: str = TOKEN, patience_s: float = 60.0) -> PolicyClient:
        return PolicyClient(self.url, token, patience_s=patience_s)

    def replica_pids(self) -> list[int]:
        return [pid for pid in descendants(self.process.pid) if "ServeReplica" in command_line(pid)]


class Start:
    """Starts the command and waits until it says that it serves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []

    def __call__(
        self, *arguments: str, port: int = 0, **environment: str
    ) -> tuple[subprocess.Popen[str], str, Path]:
        output = self.folder / f"output-{len(self.processes)}.txt"
        with output.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "rl_service.cli", "serve", *arguments, f"--port={port}"],
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                # The cache of served folders lies below HOME.
                env=command_environment(HOME=str(self.folder), **environment),
                text=True,
                start_new_session=True,
            )
        self.processes.append(process)
        deadline = time.monotonic() + START_S
        while "Ctrl-C stops it" not in output.read_text():
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.1)
        [url] = re.findall(r"^serving .* at (http://\S+)", output.read_text(), re.MULTILINE)
        return process, url, output

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    for pid in [*descendants(process.pid), process.pid]:
                        os.kill(pid, signal.SIGKILL)
                    process.wait()


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def descendants(pid: int) -> list[int]:
    """Processes below one, whatever session they are in."""
    parents: dict[int, int] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            parents[int(path.name)] = int(fields[1])
    found, below = [], {pid}
    while below:
        below = {child for child, parent in parents.items() if parent in below}
        found += sorted(below)
    return found


@pytest.fixture(scope="module")
def write_bundle_once() -> WriteTestBundle:
    """`write_test_bundle` for the fixtures of a module."""
    return write_untrained_bundle


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    folder = Path(tempfile.mkdtemp(prefix="rlt"))  # short: Ray's sockets live below it
    starter = Start(folder)
    yield starter
    starter.stop()
    shutil.rmtree(folder, ignore_errors=True)
