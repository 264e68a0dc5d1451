"""A process killed with SIGKILL at any moment of a save leaves the last whole state."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rl_service.files import write_atomic
from rl_service.runs import CheckpointStore

OLD, NEW = "old " * 1000, "new " * 1000
_FILE_EVENTS = ("open", "os.", "shutil.", "tempfile.", "pathlib.")


def run_and_kill_at(moment: int, action: Callable[[], object]) -> bool:
    """Runs an action in a child that is killed at its n-th file operation.

    Returns:
        Whether the child was killed; False if the action ended before that moment.
    """
    child = os.fork()
    if child == 0:
        count = 0

        def kill_at_moment(event: str, _: object) -> None:
            nonlocal count
            if event.startswith(_FILE_EVENTS):
                count += 1
                if count == moment:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(kill_at_moment)
        action()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    return status != 0


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
