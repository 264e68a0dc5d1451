"""A process that is killed in the middle of what it does to files."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

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
