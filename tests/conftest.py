"""What every test shares: one thread, no display, no network services, a folder of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# Set before torch, pygame or mujoco is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ["WANDB_MODE"] = "offline"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import pytest


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The test runs in an empty folder, where `runs/` and `checkpoints/` would go."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
