"""A bundle plays where Ray is not installed, and an MLP or GPT-2 critic needs no transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from custom_models.configs import GPT2CriticConfig, MLPConfig
from custom_models.model_config import ModelConfig
from rl_service.policies import load_bundle
from rl_service.training.evaluation import evaluate
from tests.conftest import WriteTestBundle

SCRIPT = """
import importlib.abc, json, sys

BLOCKED = {"ray", "transformers"}

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{name} is not installed here")

sys.meta_path.insert(0, Blocker())

from rl_service.training.evaluation import evaluate
from rl_service.policies.bundle import load_bundle

policy = load_bundle(sys.argv[1])
result = evaluate(policy, policy.spec.env, num_episodes=3, seed=11)
assert not BLOCKED & sys.modules.keys()
print(json.dumps(result.returns.tolist()))
"""


@pytest.mark.parametrize(
    "model", [MLPConfig(), GPT2CriticConfig()], ids=lambda model: str(model.name)
)
def test_a_bundle_is_evaluated_the_same_without_ray(
    tmp_path: Path, write_test_bundle: WriteTestBundle, model: ModelConfig
) -> None:
    write_test_bundle(tmp_path / "b", "LunarLander-v3", model=model, max_episode_steps=50)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "b")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    policy = load_bundle(tmp_path / "b")
    expected = evaluate(policy, policy.spec.env, num_episodes=3, seed=11)
    assert json.loads(done.stdout) == expected.returns.tolist()
