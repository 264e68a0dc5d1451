"""`rl-service policies`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_service.cli.console import (
    AllowModule,
    AsJson,
    BaseModel,
    allow_modules,
    command_group,
    figure,
    print_facts,
    print_table,
)

if TYPE_CHECKING:  # the commands load what they need, so that help and errors come at once
    from rl_service.policies.policy_versions import PolicyVersion

policies = command_group(
    "policies", "Show trained policies in the registry, and decide which one is in production."
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


@policies.command("list")
def list_policies(root: _Root = None, as_json: AsJson = False) -> None:
    """Show all versions of all policies, the newest of each first."""
    from rl_service.policies.registry import PolicyRegistry

    registry = PolicyRegistry(root)
    versions = [v for name in registry.names() for v in reversed(registry.versions(name))]
    if versions:
        rows = [
            (
                f"{version.name}:{version.version}",
                ", ".join(version.aliases),
                figure(version.episode_return_mean, 1),
                version.env,
                version.model,
                version.created_at[:16].replace("T", " "),
            )
            for version in versions
        ]
        headings = ("policy", "aliases", "episode return", "env", "model", "registered (UTC)")
        print_table(headings, rows, right=("episode return",), whole=("policy",))
    typer.echo(f"registry: {registry.root}" + ("" if versions else " (no policies yet)"))
    if as_json:
        found = [version._asdict() for version in versions]
        typer.echo(json.dumps({"registry": registry.root, "policies": found}))


@policies.command("show")
def show_policy(policy: _Reference, root: _Root = None, as_json: AsJson = False) -> None:
    """Show one version, and where its bundle is on this machine."""
    from rl_service.policies.registry import PolicyRegistry

    registry = PolicyRegistry(root)
    version = registry.resolve(policy)
    facts: dict[str, Any] = {**version._asdict(), "path": str(registry.fetch(version))}
    shown = {**facts, "aliases": ", ".join(version.aliases)}
    print_facts({name: None if value is None else str(value) for name, value in shown.items()})
    if as_json:
        typer.echo(json.dumps({"registry": registry.root, **facts}))


@policies.command("register")
def register_policy(
    folder: Annotated[Path, typer.Argument(help="A bundle: policy.json and what belongs to it.")],
    name: Annotated[
        str | None, typer.Option(help="Its name; else ENV-MODEL-ALGORITHM, as training does.")
    ] = None,
    alias: Annotated[str | None, typer.Option(help="Also give it this alias.")] = None,
    base_model: BaseModel = None,
    allow_module: AllowModule = None,
    root: _Root = None,
) -> None:
    """Put a bundle folder into the registry, as the next version of its name."""
    from rl_service.policies.registry import PolicyRegistry, check_alias

    if alias is not None:
        check_alias(alias)  # before anything is written
    allow_modules(allow_module)
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
    _report(registry.promote(chosen.name, chosen.version, alias))


@policies.command("rollback")
def roll_back(
    name: Annotated[str, typer.Argument(help="Name of the policy.")], root: _Root = None
) -> None:
    """Put the previous version back into production."""
    from rl_service.policies.registry import PolicyRegistry

    _report(PolicyRegistry(root).rollback(name))


@policies.command("export")
def export_policy(
    policy: _Reference,
    folder: Annotated[Path, typer.Argument(help="A folder that does not exist yet.")],
    allow_module: AllowModule = None,
    root: _Root = None,
) -> None:
    """Copy a version's bundle into a new folder, and print that folder."""
    allow_modules(allow_module)
    from rl_service.policies.registry import PolicyRegistry

    typer.echo(PolicyRegistry(root).export(policy, folder))


def _report(version: PolicyVersion) -> None:
    typer.echo(f"{version.name}:{version.version} is now {', '.join(version.aliases)}")
