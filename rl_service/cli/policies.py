"""`rl-service policies`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_service.cli.models import BaseModelOption

if TYPE_CHECKING:  # the commands load what they need, so that help and errors come at once
    from rl_service.policies.policy_versions import PolicyVersion

policies = typer.Typer(
    name="policies",
    help="Show trained policies in the registry, and decide which one is in production.",
    rich_markup_mode=None,
)

_Root = Annotated[
    str | None,
    typer.Option(
        "--root",
        help="Folder or URI of the registry; else $RL_SERVICE_REGISTRY, else policies/ here.",
    ),
]
_Reference = Annotated[
    str, typer.Argument(metavar="POLICY", help="NAME, NAME@ALIAS or NAME:VERSION.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on the last line.")]


@policies.callback(invoke_without_command=True)
def _show_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@policies.command("list")
def list_policies(root: _Root = None, as_json: _Json = False) -> None:
    """Show all versions of all policies, the newest of each first."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from rl_service.cli.figures import figure
    from rl_service.policies.registry import PolicyRegistry

    registry = PolicyRegistry(root)
    versions = [v for name in registry.names() for v in reversed(registry.versions(name))]
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("policy", no_wrap=True)
    table.add_column("aliases")
    table.add_column("episode return", justify="right")
    for heading in ("env", "model", "registered (UTC)"):
        table.add_column(heading)
    for version in versions:
        table.add_row(
            f"{version.name}:{version.version}",
            ", ".join(version.aliases),
            figure(version.episode_return_mean, 1),
            version.env,
            version.model,
            version.created_at[:16].replace("T", " "),
        )
    if versions:
        Console().print(table)
    typer.echo(f"registry: {registry.root}" + ("" if versions else " (no policies yet)"))
    if as_json:
        rows = [version._asdict() for version in versions]
        typer.echo(json.dumps({"registry": registry.root, "policies": rows}))


@policies.command("show")
def show_policy(policy: _Reference, root: _Root = None, as_json: _Json = False) -> None:
    """Show one version, and where its bundle lies on this machine."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from rl_service.policies.registry import PolicyRegistry

    registry = PolicyRegistry(root)
    version = registry.resolve(policy)
    facts: dict[str, Any] = {**version._asdict(), "path": str(registry.fetch(version))}
    table = Table(box=box.SIMPLE, show_header=False)
    for key, value in facts.items():
        shown = ", ".join(value) if key == "aliases" else "–" if value is None else str(value)
        table.add_row(key, Text(shown, overflow="fold"))
    Console().print(table)
    if as_json:
        typer.echo(json.dumps({"registry": registry.root, **facts}))


@policies.command("register")
def register_policy(
    folder: Annotated[Path, typer.Argument(help="A bundle: policy.json and what belongs to it.")],
    name: Annotated[
        str | None, typer.Option(help="Of the policy; else ENV-MODEL-ALGORITHM, as training does.")
    ] = None,
    alias: Annotated[str | None, typer.Option(help="Also give it this alias.")] = None,
    base_model: BaseModelOption = None,
    root: _Root = None,
) -> None:
    """Put a bundle folder into the registry, as the next version of its name."""
    from rl_service.policies.registry import PolicyRegistry, check_alias

    if alias is not None:
        check_alias(alias)  # before anything is written
    registry = PolicyRegistry(root)
    version = registry.register(folder, name, base_model)
    if alias is not None:
        version = registry.promote(version.name, version.version, alias)
    aliases = f" ({', '.join(version.aliases)})" if version.aliases else ""
    typer.echo(f"{version.name}:{version.version}{aliases} is in the registry {registry.root}")


@policies.command("promote")
def promote_policy(
    policy: _Reference,
    alias: Annotated[str, typer.Option(help="What the version is called.")] = "production",
    root: _Root = None,
) -> None:
    """Put a version into production; the one before becomes `previous`."""
    from rl_service.policies.registry import PolicyRegistry

    registry = PolicyRegistry(root)
    chosen = registry.resolve(policy)
    _tell(registry.promote(chosen.name, chosen.version, alias))


@policies.command("rollback")
def roll_back(
    name: Annotated[str, typer.Argument(help="Name of the policy.")], root: _Root = None
) -> None:
    """Put the previous version back into production."""
    from rl_service.policies.registry import PolicyRegistry

    _tell(PolicyRegistry(root).rollback(name))


@policies.command("export")
def export_policy(
    policy: _Reference,
    folder: Annotated[Path, typer.Argument(help="A folder that does not exist yet.")],
    root: _Root = None,
) -> None:
    """Copy a version's bundle into a new folder, and print that folder."""
    from rl_service.policies.registry import PolicyRegistry

    typer.echo(PolicyRegistry(root).export(policy, folder))


def _tell(version: PolicyVersion) -> None:
    typer.echo(f"{version.name}:{version.version} is now {', '.join(version.aliases)}")
