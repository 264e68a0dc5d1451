"""What several commands share: the stream they write to, Ctrl-C, the option for a cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Annotated, TextIO

import typer

Address = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Dashboard of a Ray cluster; else $RAY_API_SERVER_ADDRESS or $RAY_ADDRESS, else the "
        "cluster of `rl-service cluster up`.",
    ),
]


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


@contextlib.contextmanager
def told_if_interrupted(how_it_is: str = "nothing was started") -> Iterator[None]:
    """One line and status 130 for a Ctrl-C or SIGTERM that comes before there is a step to end.

    Args:
        how_it_is: after the interruption, unless the KeyboardInterrupt itself says it.
    """
    from rl_service.runtime.signals import interruptible

    try:
        with interruptible():
            yield
    except KeyboardInterrupt as error:  # typer would end without a word
        typer.echo(f"error: interrupted; {str(error) or how_it_is}", err=True)
        raise typer.Exit(130) from error
