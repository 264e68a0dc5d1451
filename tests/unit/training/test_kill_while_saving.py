"""A process killed with SIGKILL at any moment of a save leaves the last whole state."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from rl_service.common.files import write_atomic
from rl_service.training.checkpoints import CheckpointStore
from tests.support.kills import run_and_kill_at

OLD, NEW = "old " * 1000, "new " * 1000


def write_state(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for name in ("weights.txt", "optimizer.txt"):
            with (folder / name).open("w") as file:
                file.write(text[:100])
                file.flush()
                file.write(text[100:])

    return write


def test_a_kill_at_any_moment_of_a_save_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    moment = 0
    was_killed = True
    seen = set()
    while was_killed:
        moment += 1
        store = CheckpointStore(tmp_path / str(moment), keep=1)
        store.save(1, write_state(OLD))
        was_killed = run_and_kill_at(moment, partial(store.save, 2, write_state(NEW)))

        latest = store.latest()
        assert latest is not None
        texts = {path.read_text() for path in latest.glob("*.txt")}
        assert texts in ({OLD}, {NEW})
        seen |= texts

        store.save(3, write_state(NEW))
        assert [path.name for path in store.path.iterdir()] == ["iteration_000003"]
    assert seen == {OLD, NEW}
    assert moment > 20


def test_a_kill_at_any_moment_leaves_the_old_or_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    moment = 0
    was_killed = True
    while was_killed:
        moment += 1
        write_atomic(path, OLD)
        was_killed = run_and_kill_at(moment, lambda: write_atomic(path, NEW))
        assert path.read_text() in (OLD, NEW)
    assert path.read_text() == NEW
    assert moment > 3
