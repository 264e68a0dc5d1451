"""The option that says which cluster a command speaks to."""

from __future__ import annotations

from typing import Annotated

import typer

Address = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Dashboard of a Ray cluster; else $RAY_API_SERVER_ADDRESS or $RAY_ADDRESS, else the "
        "cluster of `rl-service cluster up`.",
    ),
]
