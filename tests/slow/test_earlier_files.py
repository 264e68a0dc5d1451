"""What earlier releases have written is still read: a run, an experiment, a registry, a bundle."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rl_service.policies import load_bundle

ARCHIVE = Path(__file__).with_name("earlier_files.tar.xz")
"""Written by commit 47802f5: a run, and an experiment that was stopped in its first trial."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("elsewhere")
    shutil.unpack_archive(ARCHIVE, parent)
    return parent / "rl-service-earlier-files"


def ask(folder: Path, *arguments: str) -> dict[str, Any]:
    """The JSON object that a command ends with."""
    done = subprocess.run(
        [sys.executable, "-m", "rl_service.cli", *arguments, "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_bundle_and_a_registry_of_an_earlier_release(folder: Path) -> None:
    [bundle] = folder.glob("checkpoints/gpt2_critic/CartPole-v1/*")
    assert load_bundle(str(bundle)).spec.env.id == "CartPole-v1"
    played = ask(folder, "evaluate", "cartpole-v1-gpt2_critic-ppo@best", "-ne", "1")
    assert played["episodes"] == 1


def test_a_run_of_an_earlier_release_resumes(folder: Path) -> None:
    [run] = folder.glob("runs/gpt2_critic_ppo_CartPole-v1/*")
    assert ask(folder, "train", "--resume", str(run), "-ne", "3")["env_steps"] == 192
    rows = [json.loads(line) for line in (run / "progress.jsonl").read_text().splitlines()]
    assert [row["training_iteration"] for row in rows] == [1, 2, 3]
    assert len(list(folder.glob("checkpoints/gpt2_critic/CartPole-v1/*"))) == 1  # its own again


def test_an_experiment_of_an_earlier_release_resumes(folder: Path) -> None:
    [experiment] = folder.glob("runs/search_*")
    result = ask(folder, "tune", "--resume", str(experiment))
    assert (result["status"], result["trials"], result["failed"]) == ("finished", 2, 0)
