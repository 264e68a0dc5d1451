"""A real pretrained language model trains, as a user starts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_service.policies.base_model_fetch import fetch
from tests.learning.training import train


@pytest.mark.parametrize(
    ("env", "algorithm", "batch"), [("CartPole-v1", "ppo", 256), ("HalfCheetah-v4", "trpo", 200)]
)
@pytest.mark.parametrize("finetune", ["head", "lora"])
def test_smollm2_trains_two_iterations(
    env: str, algorithm: str, batch: int, finetune: str, tmp_path: Path
) -> None:
    fetch("smollm2-135m", on_message=print)
    settings = {
        "model.finetune": finetune,
        "model.num_layers": 4,
        "algorithm.train_batch_size": batch,
        "resources.num_env_runners": 0,
        "evaluation.interval": 0,
        "evaluation.final_num_episodes": 1,
        "env.max_episode_steps": 50,
    }
    overrides = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    names = ("-m", "llm_policy", "-e", env, "-a", algorithm, "-ne", "2", "--seed", "1")
    result = train(tmp_path, *names, *overrides)
    assert (result["env_steps"], result["status"]) == (2 * batch, "finished")
    size = (Path(result["policy"]) / "policy.safetensors").stat().st_size
    assert size < 5 * 2**20  # the model itself is not in it
