"""A model and an algorithm from outside, as a user has them: in a folder of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_service.serving.client import PolicyClient
from tests.support.services import Start

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
MODEL, ALGORITHM = "reward_critic:RewardCritic", "decoupled_ppo:DecoupledPPO"
NAME = "cartpole-v1-rewardcritic-decoupledppo"
TUNING = f"""
settings:
  env: {{id: CartPole-v1}}
  model: {{name: "{MODEL}", n_layer: 1, n_head: 2, n_embd: 8, context_length: 4}}
  algorithm: {{name: "{ALGORITHM}", train_batch_size: 256, minibatch_size: 64, num_epochs: 1}}
  resources: {{num_env_runners: 0}}
  stop: {{iterations: 1}}
  evaluation: {{interval: 0, final_num_episodes: 1}}
search_space:
  model.reward_scale: {{uniform: [0.5, 2.0]}}
  algorithm.actor_lambda: {{choice: [0.9, 1.0]}}
num_samples: 2
"""


class Folder:
    """A user's folder, with the examples in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.modules = path / "modules"
        self.modules.mkdir()
        for name in ("reward_critic.py", "decoupled_ppo.py"):
            shutil.copy(EXAMPLES / name, self.modules)

    def run(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rl_service.cli", *arguments],
            cwd=cwd or self.path,
            env=os.environ | {"PYTHONPATH": f"{self.modules}:{EXAMPLES.parents[1]}"},
            capture_output=True,
            text=True,
        )

    def ask(self, *arguments: str, cwd: Path | None = None) -> dict[str, Any]:
        """The JSON object that a command ends with."""
        done = self.run(*arguments, "--json", cwd=cwd)
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def trained(folder: Folder) -> dict[str, Any]:
    """Two iterations with a rollout worker, then a third after a resume."""
    first = folder.ask(
        *f"train -m {MODEL} -a {ALGORITHM} -e CartPole-v1 -ne 2".split(),
        *(f"--set=model.{key}" for key in ("n_layer=1", "n_head=2", "n_embd=8")),
        *("--set=algorithm.train_batch_size=256", "--set=resources.num_env_runners=1"),
    )
    resumed = folder.ask("train", "--resume", first["run"], "-ne", "3")
    assert (resumed["iterations"], resumed["env_steps"]) == (3, 768)
    assert resumed["policy"] == first["policy"]
    return resumed


def test_folders_and_the_registry_have_the_classes_names(
    folder: Folder, trained: dict[str, Any]
) -> None:
    assert (trained["model"], trained["algo"]) == (MODEL, ALGORITHM)
    assert Path(trained["policy"]).parent == folder.path / "checkpoints/RewardCritic/CartPole-v1"
    assert Path(trained["run"]).parent.name == "RewardCritic_DecoupledPPO_CartPole-v1"
    assert trained["registered"].startswith(f"{NAME}:")


def test_a_bundle_loads_elsewhere_once_its_module_is_allowed(
    folder: Folder, trained: dict[str, Any], tmp_path: Path
) -> None:
    shutil.copytree(trained["policy"], tmp_path / "bundle")
    refused = folder.run("evaluate", "bundle", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--allow-module reward_critic" in refused.stderr
    played = folder.ask(
        "evaluate", "bundle", "-ne", "2", "--allow-module", "reward_critic", cwd=tmp_path
    )
    assert (played["episodes"], played["model"]) == (2, MODEL)


def test_both_are_tuned(folder: Folder) -> None:
    (folder.path / "tuning.yaml").write_text(TUNING, encoding="utf-8")
    result = folder.ask("tune", "tuning.yaml")
    assert (result["status"], result["trials"], result["failed"]) == ("finished", 2, 0)
    assert (result["model"], result["algo"]) == (MODEL, ALGORITHM)


@pytest.fixture
def start(folder: Folder) -> Iterator[Start]:
    starting = Start(folder.path)
    yield starting
    starting.stop()


def test_a_policy_is_served_once_its_module_is_allowed(
    folder: Folder, trained: dict[str, Any], start: Start
) -> None:
    modules = f"{folder.modules}:{EXAMPLES.parents[1]}"
    refused = folder.run("serve", trained["policy"])
    assert refused.returncode == 2
    assert "--allow-module reward_critic" in refused.stderr
    _, url, _ = start(trained["policy"], "--allow-module", "reward_critic", PYTHONPATH=modules)
    with PolicyClient(url) as client:
        [name] = [policy["policy"] for policy in client.policies()]
        assert client.act(name, np.zeros(4, np.float32)).action in (0, 1)
