"""A real pretrained language model trains, as a user starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl_service.base_models import fetch

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("env", "algorithm", "batch"), [("CartPole-v1", "ppo", 256), ("HalfCheetah-v4", "trpo", 160)]
)
@pytest.mark.parametrize("finetune", ["head", "lora"])
def test_smollm2_trains_two_iterations(
    env: str, algorithm: str, batch: int, finetune: str, tmp_path: Path
) -> None:
    fetch("smollm2-135m", on_message=print)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "rl_service.cli", "train", "-m", "llm_policy", "-e", env),
            *("-a", algorithm, "-ne", "2", "--seed", "1", "--json", "-o", str(tmp_path)),
            *("--set", f"model.finetune={finetune}", "--set", "model.num_layers=4"),
            *("--set", f"algorithm.train_batch_size={batch}"),
            *("--set", "resources.num_env_runners=0", "--set", "evaluation.interval=0"),
            *("--set", "evaluation.final_num_episodes=1", "--set", "env.max_episode_steps=50"),
        ],
        cwd=ROOT,
        env={**os.environ, "RAY_ADDRESS": ""},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["env_steps"], result["status"]) == (2 * batch, "finished")
    size = (Path(result["policy"]) / "policy.safetensors").stat().st_size
    assert size < 5 * 2**20  # the model itself is not in it
