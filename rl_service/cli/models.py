"""`rl-service models`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from rl_service.cli.console import AsJson, command_group, print_table

models = command_group("models", "Fetch base language models into the local store, and list them.")


@models.command("fetch")
def fetch_model(
    name: Annotated[str, typer.Argument(help="A name that `rl-service models list` shows.")],
    as_json: AsJson = False,
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
def list_models(as_json: AsJson = False) -> None:
    """Show what is in the store and what can be fetched."""
    from custom_models.base_models import store_folder

    found = _models()
    headings = ("name", "in the store", "size", "licence", "description")
    rows = [
        (
            row["name"],
            "yes" if row["stored"] else "no",
            f"{row['size_bytes'] / 1e6:,.1f} MB",
            row["licence"] or "–",
            row["description"] or "a folder of your own",
        )
        for row in found
    ]
    print_table(headings, rows, right=("size",))
    typer.echo(f"store: {store_folder()}")
    if as_json:
        typer.echo(json.dumps({"store": str(store_folder()), "models": found}))


def _models() -> list[dict[str, Any]]:
    """The catalogue, then what else is in the store."""
    from custom_models.base_models import store_folder, stored_names
    from rl_service.policies.base_model_fetch import CATALOGUE

    stored = stored_names()
    found = []
    for name in [*CATALOGUE, *(name for name in stored if name not in CATALOGUE)]:
        source = CATALOGUE.get(name)
        folder = store_folder() / name
        found.append(
            {
                "name": name,
                "stored": name in stored,
                "size_bytes": _size_bytes(folder) if name in stored else CATALOGUE[name].size_bytes,
                "licence": None if source is None else source.licence,
                "description": None if source is None else source.description,
            }
        )
    return found


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
