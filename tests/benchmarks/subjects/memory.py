"""Resident memory of learner and rollout workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.benchmarks.subjects.trainings import Trainings

_FIELDS = {"VmHWM": "peak", "VmRSS": "resident", "RssAnon": "private"}


class Memory(Trainings):
    """Trainings that are asked how much they hold."""

    def memory(self, name: str) -> dict[str, dict[str, int]]:
        """Bytes of each process: `learner`, `worker 1`, `worker 2`, ….

        `peak` is that of the whole life of the process, `private` leaves out what it shares with
        others, such as Ray's object store.
        """

        def of_worker(worker: Any) -> tuple[str, dict[str, int]]:
            return f"worker {worker.worker_index}", process_memory()

        fleet = self.algorithms[name].fleet
        workers = {} if fleet is None else fleet.call("apply", of_worker)
        return {"learner": process_memory(), **dict(workers.values())}


def process_memory() -> dict[str, int]:
    """Bytes of this process, from the kernel."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    values = {
        name: value.split()[0]
        for name, _, value in (line.partition(":") for line in lines)
        if value.endswith("kB")
    }
    return {ours: int(values[theirs]) * 1024 for theirs, ours in _FIELDS.items()}
