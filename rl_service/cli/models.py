"""`rl-service models`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

BaseModelOption = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Folder of the language model that the policy was trained on, if that is not in the "
        "model store; its SHA-256 is checked.",
    ),
]
"""`--base-model` of the commands that read policies."""

models = typer.Typer(
    name="models",
    help="Fetch base language models into the local store, and list them.",
    rich_markup_mode=None,
)


@models.callback(invoke_without_command=True)
def _show_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@models.command("fetch")
def fetch_model(
    name: Annotated[str, typer.Argument(help="A name that `rl-service models list` shows.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on the last line.")
    ] = False,
) -> None:
    """Download a base model, convert it, and print its folder."""
    from rich.console import Console
    from rich.text import Text

    from custom_models.base_models import fingerprint
    from rl_service.policies.base_model_fetch import fetch
    from rl_service.runtime.signals import interruptible

    console = Console()
    with interruptible(), console.status("") as spinner:  # a spinner shows on a terminal alone

        def show(message: str) -> None:
            console.print(Text(message), soft_wrap=True)
            spinner.update(Text(message))

        folder = fetch(name, on_message=show)
    typer.echo(str(folder))
    if as_json:
        found = {"name": name, "path": str(folder), "sha256": fingerprint(folder)}
        typer.echo(json.dumps(found))


@models.command("list")
def list_models(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on the last line.")
    ] = False,
) -> None:
    """Show what is in the store and what can be fetched."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from custom_models.base_models import store_folder

    rows = _rows()
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("name", "in the store", "size", "licence", "description"):
        table.add_column(heading, justify="right" if heading == "size" else "left")
    for row in rows:
        table.add_row(
            row["name"],
            "yes" if row["stored"] else "no",
            f"{row['size_bytes'] / 1e6:,.1f} MB",
            row["licence"] or "–",
            row["description"] or "a folder of your own",
        )
    Console().print(table)
    typer.echo(f"store: {store_folder()}")
    if as_json:
        typer.echo(json.dumps({"store": str(store_folder()), "models": rows}))


def _rows() -> list[dict[str, Any]]:
    """The catalogue, then what else is in the store."""
    from custom_models.base_models import store_folder, stored_names
    from rl_service.policies.base_model_fetch import CATALOGUE

    store, stored = store_folder(), stored_names()
    known = [
        _row(
            name,
            stored=name in stored,
            size_bytes=_size_bytes(store / name) if name in stored else source.size_bytes,
            licence=source.licence,
            description=source.description,
        )
        for name, source in CATALOGUE.items()
    ]
    own = [
        _row(name, stored=True, size_bytes=_size_bytes(store / name))
        for name in stored
        if name not in CATALOGUE
    ]
    return known + own


def _row(
    name: str,
    *,
    stored: bool,
    size_bytes: int,
    licence: str | None = None,
    description: str | None = None,
) -> dict[str, Any]:
    return {
        "name": name,
        "stored": stored,
        "size_bytes": size_bytes,
        "licence": licence,
        "description": description,
    }


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
