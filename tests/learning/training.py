"""Trainings as a user starts them: the command, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def train(folder: Path, *arguments: str, ray_address: str = "") -> dict[str, Any]:
    """Runs `rl-service train` into a folder; returns its `--json` object.

    Args:
        folder: of the run.
        arguments: of the command.
        ray_address: of a Ray to share; by default the command starts its own.
    """
    done = subprocess.run(
        [
            *(sys.executable, "-m", "rl_service.cli", "train", *arguments),
            *("--json", "-o", str(folder)),
        ],
        cwd=ROOT,
        env={**os.environ, "RAY_ADDRESS": ray_address},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
