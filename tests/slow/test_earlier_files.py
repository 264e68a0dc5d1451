"""What earlier releases have written is still read: a run, an experiment, a registry, a bundle."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from custom_models.interfaces import Chunks
from rl_service.policies import load_bundle
from rl_service.policies.bundle import read_critic

VALUES = {
    "47802f5": [0.731389, 0.597995, -0.264743, -0.070518, 0.251893],
    "3e5e45d": [1.79779, 0.695773, 1.321088, 1.522788, 1.731586],
}
"""Of the bundle's critic, at some steps of an episode, as the commit computed them. Each commit has
written a run, and an experiment that was stopped in its first trial. The second one's critics have
two layers, and the one in the experiment no timestep."""


@pytest.fixture(scope="module", params=VALUES)
def commit(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def folder(commit: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("elsewhere")
    shutil.unpack_archive(Path(__file__).with_name(f"earlier_{commit}.tar.xz"), parent)
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


def test_the_values_of_an_earlier_release(commit: str, folder: Path) -> None:
    """Layers that each look back K steps, and absolute time: what was the default."""
    [bundle] = folder.glob("checkpoints/gpt2_critic/CartPole-v1/*")
    critic, _ = read_critic(bundle)
    t = torch.arange(9)
    chunks = Chunks(
        obs=torch.sin(torch.arange(36.0)).view(1, 9, 4),
        actions=(t % 2)[None],
        rewards=torch.zeros(1, 9),
        timesteps=t[None],
        segment_ids=torch.zeros(1, 9, dtype=torch.int64),
    )
    values = critic(chunks, 9)[0, [0, 1, 2, 5, 8]]
    torch.testing.assert_close(values, torch.tensor(VALUES[commit]), rtol=0, atol=1e-5)


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
