"""What several commands share: options, tables, numbers as text, and what Ctrl-C says."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on the last line.")]
BaseModel = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Folder of the language model that the policy was trained on, if that is not in the "
        "model store; its SHA-256 is checked.",
    ),
]

AllowModule = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE",
        help="Import this module if the policy's model is from it. Only for code that you trust; "
        "may be given several times.",
    ),
]


def allow_modules(modules: Collection[str] | None) -> None:
    """Carries out `AllowModule`, before a bundle is read."""
    from custom_models.kinds import allow_module

    for module in modules or ():
        allow_module(module)


def allowing(model: str) -> str:
    """The option that a bundle of this model needs, for a command to copy; empty for ours."""
    module, colon, _ = model.partition(":")
    return f" --allow-module {module}" if colon else ""


def command_group(name: str, help: str, **settings: Any) -> typer.Typer:
    """A command of several, which shows its help if none of them is given."""
    group = typer.Typer(name=name, help=help, rich_markup_mode=None, **settings)

    @group.callback(invoke_without_command=True)
    def show_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    return group


@contextlib.contextmanager
def reported_if_interrupted(outcome: str = "nothing was started") -> Iterator[None]:
    """One line and status 130 for a Ctrl-C or SIGTERM before there is a step to end.

    Args:
        outcome: how things are after the interruption, unless the KeyboardInterrupt says it.
    """
    from rl_service.runtime.signals import interruptible

    try:
        with interruptible():
            yield
    except KeyboardInterrupt as error:  # typer would end without a word
        typer.echo(f"error: interrupted; {str(error) or outcome}", err=True)
        raise typer.Exit(130) from error


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    whole: Collection[str] = (),
) -> None:
    """Prints rows below headings.

    Args:
        headings: of the columns.
        rows: one cell for each heading.
        right: headings of the columns that are aligned to the right.
        whole: headings of the columns whose cells are never wrapped.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for heading in headings:
        table.add_column(
            heading,
            justify="right" if heading in right else "left",
            no_wrap=heading in whole,
            overflow="ellipsis" if heading in whole else "fold",
        )
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def print_facts(facts: Mapping[str, str | None]) -> None:
    """Prints names and values in two columns; unknown values become a dash."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, show_header=False)
    for name, value in facts.items():
        table.add_row(name, Text("–" if value is None else value, overflow="fold"))
    Console().print(table)


def figure(value: float | None, digits: int = 0) -> str:
    """`12345.6` becomes `12,346`; unknown values become a dash."""
    return "–" if value is None else f"{value:,.{digits}f}"


def speed(steps_per_s: float | None) -> str:
    """`1234.5` becomes `1,235`; of slow environments two digits count: `0.42`."""
    if steps_per_s is None or steps_per_s >= 10.0:
        return figure(steps_per_s)
    return f"{steps_per_s:.2g}"


def mean_std(mean: float | None, std: float | None) -> str:
    """`123.4 ± 5.6`."""
    return figure(mean, 1) if std is None else f"{figure(mean, 1)} ± {figure(std, 1)}"


def duration(seconds: float | None) -> str:
    """`65` becomes `1:05`, `3700` becomes `1:01:40`."""
    if seconds is None:
        return "–"
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest_s:02}" if hours else f"{minutes}:{rest_s:02}"


def short_path(path: str | Path) -> str:
    """The path as one would type it here: relative if it is below, quoted if necessary."""
    path = Path(path)
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
