"""A signal that comes before there is a step to end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import typer


@contextlib.contextmanager
def told_if_interrupted(how_it_is: str = "nothing was started") -> Iterator[None]:
    """One line and status 130 for a Ctrl-C or SIGTERM that comes before there is a step to end.

    Args:
        how_it_is: after the interruption, unless the KeyboardInterrupt itself says it.
    """
    from rl_service.runs.signals import interruptible

    try:
        with interruptible():
            yield
    except KeyboardInterrupt as error:  # typer would end without a word
        typer.echo(f"error: interrupted; {str(error) or how_it_is}", err=True)
        raise typer.Exit(130) from error
