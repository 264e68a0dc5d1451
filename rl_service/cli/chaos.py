"""`rl-service cluster chaos`."""

from __future__ import annotations

import json
import math
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rl_service.errors import SettingsError

if TYPE_CHECKING:
    from rl_service.cluster.chaos import Kill

_NAMES = {"workers": "rollout worker", "nodes": "node"}


def chaos(
    target: Annotated[
        Literal["workers", "nodes"],
        typer.Option(help="What dies: rollout workers, or worker nodes with all that is on them."),
    ] = "workers",
    every_s: Annotated[float, typer.Option(help="Mean seconds between two kills.")] = 30.0,
    duration_s: Annotated[
        float | None, typer.Option(help="Seconds until it ends; else Ctrl-C ends it.")
    ] = None,
    kills: Annotated[
        int | None, typer.Option(min=1, help="Kills until it ends; else Ctrl-C ends it.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of times and picks.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on the last line.")
    ] = False,
) -> None:
    """Kill rollout workers or nodes of the local cluster at random, as faults would."""
    from rl_service.cluster.chaos import cluster_to_hurt, plan, unleash
    from rl_service.runs.signals import interruptible

    _check_seconds(every_s=every_s, duration_s=duration_s)
    cluster = cluster_to_hurt(target)
    happened: list[Kill] = []
    interrupted = False
    try:
        with interruptible():
            for kill in unleash(
                cluster, target, plan(every_s, seed), duration_s=duration_s, max_kills=kills
            ):
                happened.append(kill)
                typer.echo(_line(kill, _NAMES[target]))
    except KeyboardInterrupt:
        interrupted = True
    finally:  # also if the cluster ends meanwhile
        _summarize(happened, target, seed, as_json)
    if interrupted:
        raise typer.Exit(130)


def _check_seconds(**given: float | None) -> None:
    problems = [
        f"--{name.replace('_', '-')} must be above 0, not {value:g}; give seconds"
        for name, value in given.items()
        if value is not None and not 0 < value < math.inf
    ]
    if problems:
        raise SettingsError(problems)


def _line(kill: Kill, name: str) -> str:
    now = datetime.now().strftime("%H:%M:%S")
    if kill.victim is None:
        return f"{now}  no {name} to kill"
    if name == "node":
        return f"{now}  killed node {kill.victim.node} (process {kill.victim.pid})"
    return f"{now}  killed {name} {kill.victim.pid} on {kill.victim.node}"


def _summarize(happened: list[Kill], target: str, seed: int, as_json: bool) -> None:
    rows = [
        {"at_s": round(at_s, 3), **victim._asdict()}
        for at_s, victim in happened
        if victim is not None
    ]
    missed = len(happened) - len(rows)
    without = f"; {missed} time(s) there was none" if missed else ""
    typer.echo(f"killed {len(rows)} {_NAMES[target]}(s) with seed {seed}{without}")
    if as_json:
        summary = {"target": target, "seed": seed, "kills": rows, "missed": missed}
        typer.echo(json.dumps(summary))
