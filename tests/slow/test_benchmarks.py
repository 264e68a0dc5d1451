"""`make bench` in miniature: every part but Stable-Baselines3 runs, reads well and is recorded.

No time is asserted: what is measured here means nothing.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import machine
from tests.benchmarks.catalog import BENCHMARKS, TABLES
from tests.benchmarks.child import Child, ChildFailed
from tests.benchmarks.peers import PEERS
from tests.benchmarks.record import Record
from tests.benchmarks.simulation import calibration, report
from tests.benchmarks.simulation.__main__ import write
from tests.benchmarks.simulation.pipeline import Cluster
from tests.benchmarks.simulation.predictions import predict
from tests.benchmarks.training import Sizes


class Adder:
    """A subject with something to say."""

    def __init__(self, start: int) -> None:
        self.total = start

    def add(self, number: int) -> int:
        self.total += number
        return self.total

    def close(self) -> None:
        pass


@contextmanager
def in_this_process(path: str, **arguments: Any) -> Iterator[Any]:
    """Subjects share the tests' Ray instead of starting one each."""
    module, _, name = path.partition(":")
    subject = getattr(importlib.import_module(module), name)(**arguments)
    try:
        yield subject
    finally:
        subject.close()


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize(
    "name",
    [n for n, b in BENCHMARKS.items() if not (b.needs_stable_baselines3 or b.tried_elsewhere)],
)
def test_a_benchmark_measures_and_its_tables_are_recorded(name: str, tmp_path: Path) -> None:
    raw = BENCHMARKS[name].measure(in_this_process, True)
    record = Record(tmp_path, "speed", "make bench")
    record.add(name, raw, machine.describe(), 1.0, TABLES)
    assert json.loads(record.raw_path.read_text())[name]["raw"] == raw
    page = (tmp_path / "speed-tables.md").read_text()
    tables = TABLES[name](raw)
    assert tables
    for table in tables:
        assert f"## {table.title}\n" in page
        assert table.rows
        assert all(len(row) == len(table.columns) for row in table.rows)


@pytest.mark.usefixtures("local_ray")
def test_the_simulation_is_fed_checked_and_drawn(tmp_path: Path) -> None:
    raw = calibration.measure(in_this_process, True)
    raw |= predict(raw, Cluster(cores_per_node=2), worker_counts=(1, 3))
    write(tmp_path, raw, machine.describe(), 1.0)
    assert json.loads((tmp_path / "scaling.json").read_text())["simulation"]["raw"] == raw
    page = (tmp_path / "scaling-tables.md").read_text()
    tables = report.tables(raw)
    for table in tables:
        assert f"## {table.title}\n" in page
        assert table.rows
        assert all(len(row) == len(table.columns) for row in table.rows)
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
    checks = [(check["workers"], check["env_steps"]) for check in raw["checks"]]
    assert checks == [(1, 128), (1, 64)]


def test_a_child_keeps_its_state_and_survives_a_failed_call() -> None:
    with Child(f"{__name__}:Adder", start=1) as child:
        assert child.add(2) == 3
        with pytest.raises(ChildFailed, match="TypeError"):
            child.add("two")
        assert child.add(4) == 7


@pytest.mark.parametrize("name", PEERS)
def test_what_we_are_compared_with_learns(name: str) -> None:
    peer = PEERS[name]
    if not peer.is_installed:
        pytest.skip(f"needs {', '.join(peer.packages + peer.programs)}")
    sizes = Sizes(train_batch_size=2048, minibatch_size=128)
    with Child(peer.path, **peer.arguments_for("CartPole-v1", sizes)) as subject:
        subject.train(1)
        assert subject.episode_return() < 40
        subject.train(11)
        assert subject.episode_return() > 80
