"""Workers of a real Ray that come out of one process, and what happens if it is not there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import ray

from rl_service.cluster.nodes import command_line
from rl_service.runtime import forkserver
from tests.support.rays import own_ray

LIGHT = ("xml.dom.minidom",)
"""A module that nobody else imports."""
PATIENCE_S = 60.0


class Seen(NamedTuple):
    """What a worker is."""

    parent: int
    has_module: bool
    threads_of_parent: int
    variable: str | None
    random: float
    arguments: list[str]


class Worker:
    def start_child(self) -> int:
        return subprocess.Popen(["sleep", "1000"]).pid

    def look(self) -> Seen:
        import numpy as np

        parent = os.getppid()
        return Seen(
            parent,
            LIGHT[0] in sys.modules,
            len(list(Path(f"/proc/{parent}/task").iterdir())),
            os.environ.get("OF_THIS_WORKER"),
            float(np.random.random()),
            sys.argv,
        )


def starter(*modules: str) -> Callable[..., Any]:
    """What starts workers that are forked from one process that has loaded these modules."""
    mine = {"py_executable": forkserver.py_executable(modules)}

    def start(**variables: str) -> Any:
        runtime_env = {**mine, "env_vars": variables}
        return ray.remote(num_cpus=0, runtime_env=runtime_env)(Worker).remote()

    return start


def is_server(pid: int) -> bool:
    return forkserver.__file__ in command_line(pid)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_workers_share_their_imports_and_nothing_else() -> None:
    with own_ray():
        start = starter(*LIGHT)
        actors = [start(), start(), start(OF_THIS_WORKER="yes")]
        first, second, third = ray.get([actor.look.remote() for actor in actors])
        assert first.parent == second.parent == third.parent
        assert is_server(first.parent)
        assert first.has_module and second.has_module and third.has_module
        assert first.threads_of_parent == 1  # else a fork could inherit a lock that is held
        assert (first.variable, second.variable, third.variable) == (None, None, "yes")
        assert len({first.random, second.random, third.random}) == 3
        assert len({tuple(seen.arguments) for seen in (first, second, third)}) == 3
        for actor in actors[:2]:
            ray.kill(actor)
        again = ray.get(start().look.remote())
        assert again.parent == first.parent
    wait_until(lambda: not is_server(first.parent))  # it goes with its node


@pytest.mark.usefixtures("local_ray")
def test_a_killed_worker_takes_its_children_along_and_no_other_worker() -> None:
    start = starter(*LIGHT)
    first, second = start(), start()
    child = ray.get(first.start_child.remote())
    before = ray.get(second.look.remote())
    ray.kill(first)
    wait_until(lambda: not command_line(child))
    assert ray.get(second.look.remote()).parent == before.parent
    assert is_server(before.parent)


@pytest.mark.usefixtures("local_ray")
def test_another_server_comes_when_one_was_killed() -> None:
    start = starter(*LIGHT)
    lives = start()
    first = ray.get(lives.look.remote())
    os.kill(first.parent, signal.SIGKILL)
    second = ray.get(start().look.remote())
    assert second.parent != first.parent
    assert is_server(second.parent)
    assert ray.get(lives.look.remote()).random != first.random  # and its workers live on


@pytest.mark.usefixtures("local_ray")
def test_a_server_that_cannot_import_costs_no_worker() -> None:
    seen = ray.get(starter("no_such_module")().look.remote())
    assert not is_server(seen.parent)
    assert not seen.has_module


@pytest.mark.usefixtures("local_ray")
def test_a_node_without_the_file_starts_workers_as_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forkserver, "__file__", str(tmp_path / "missing.py"))
    assert not ray.get(starter(*LIGHT)().look.remote()).has_module


def test_a_server_without_workers_goes_after_a_while() -> None:
    code = (
        "import os, socket; from rl_service.runtime import forkserver as server; "
        "server._IDLE_S = 0.1; "
        "os.environ['RAY_RAYLET_PID'] = str(os.getppid()); listener = socket.socket(); "
        "listener.listen(); server._serve(listener, [])"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)
