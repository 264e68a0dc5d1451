"""Keeps the console for the command's own lines; everything else goes to the run's log file."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from rl_service.common.files import output_errors


@contextlib.contextmanager
def captured_output(log_path: Path) -> Iterator[tuple[TextIO, TextIO]]:
    """Sends file descriptors 1 and 2 to a log file while the block runs.

    Python's own streams are not enough: Ray's C++ core and child processes write to the
    descriptors.

    Args:
        log_path: the file; output is appended.

    Yields:
        Streams to the real standard output and standard error.

    Raises:
        OutputError: if the log file cannot be opened.
    """
    _flush_standard_streams()
    with contextlib.ExitStack() as stack:
        with output_errors(log_path):
            log = stack.enter_context(log_path.open("ab"))
        out = stack.enter_context(_kept(1, sys.stdout))
        err = stack.enter_context(_kept(2, sys.stderr))
        stack.callback(_flush_to_log)
        stack.enter_context(_line_buffered(sys.stdout))
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        yield out, err


@contextlib.contextmanager
def _kept(descriptor: int, stream: TextIO) -> Iterator[TextIO]:
    """A stream to the descriptor's present target, which the descriptor gets back at the end."""
    saved = os.dup(descriptor)
    # A console that cannot show a character gets a question mark, not a traceback.
    encoding = getattr(stream, "encoding", None) or "utf-8"
    with os.fdopen(saved, "w", encoding=encoding, errors="replace", buffering=1) as kept:
        try:
            yield kept
        finally:
            os.dup2(saved, descriptor)


@contextlib.contextmanager
def _line_buffered(stream: TextIO) -> Iterator[None]:
    """Lets the log show each line at once, also if the stream was made for a pipe.

    The stream itself stays: libraries keep it and write to it long after the block.
    """
    if not isinstance(stream, io.TextIOWrapper):
        yield
        return
    before = stream.line_buffering
    stream.reconfigure(line_buffering=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # it flushes first; see `_flush_to_log`
            stream.reconfigure(line_buffering=before)


def _flush_to_log() -> None:
    """Empties the streams before the console returns; a full disk costs the log, not the run."""
    try:
        _flush_standard_streams()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os.close(nowhere)
        _flush_standard_streams()


def _flush_standard_streams() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if stream is not None:
            stream.flush()
