"""What the displays of a run and of an experiment know of the stream that they write to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TextIO


def can_move_cursor(out: TextIO) -> bool:
    """Whether a live view works there."""
    return out.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


@contextlib.contextmanager
def until_closed(out: TextIO) -> Iterator[None]:
    """Lets a run go on when its reader has gone (`rl-service train | head`)."""
    try:
        yield
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, out.fileno())
        os.close(nowhere)
