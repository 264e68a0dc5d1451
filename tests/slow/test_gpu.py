"""Training whose learner has a GPU: the same run, other hardware."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_service.algorithms.batch import build_learner_batch
from rl_service.algorithms.registry import build_algorithm
from rl_service.config.settings import Settings
from tests.support.rays import own_ray

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module", autouse=True)
def ray_with_a_gpu() -> Iterator[None]:
    with own_ray(num_gpus=1):
        yield


def settings(model: dict[str, Any], **resources: Any) -> Settings:
    return Settings.model_validate(
        {
            "env": {"id": "LunarLander-v3", "max_episode_steps": 60},
            "model": model,
            "algorithm": {
                "name": "ppo",
                "train_batch_size": 512,
                "minibatch_size": 64,
                "kl_coeff": 0.2,
            },
            "resources": {"num_env_runners": 0, "num_envs_per_env_runner": 4, **resources},
            "seed": 3,
        }
    )


MODELS = [{"name": "mlp"}, {"name": "gpt2_critic", "context_length": 8}]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["name"])
def test_one_batch_teaches_a_gpu_what_it_teaches_a_cpu(model: dict[str, Any]) -> None:
    algorithms = [build_algorithm(settings(model, num_gpus=n)) for n in (0, 1)]
    samples = algorithms[0].env_runner.sample(128)
    policies = [algorithm.learner_policy for algorithm in algorithms]
    rows = []
    for policy in policies:
        batch = build_learner_batch(policy, samples)
        rows.append({**policy.update_actor(batch), **policy.update_critic(batch)})
    here, there = (policy.get_learner_state()["net"] for policy in policies)
    for algorithm in algorithms:
        algorithm.stop()
    assert next(iter(there.values())).is_cuda
    for name, weight in here.items():
        torch.testing.assert_close(there[name].cpu(), weight, rtol=1e-2, atol=2e-3)
    assert rows[0].keys() == rows[1].keys()
    for key, value in rows[0].items():
        assert rows[1][key] == pytest.approx(value, rel=1e-2, abs=2e-3), key


@pytest.mark.parametrize("num_env_runners", [0, 2])
@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16 compiled"])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["name"])
def test_a_run_on_a_gpu_goes_on_on_a_cpu(
    model: dict[str, Any], low: bool, num_env_runners: int, tmp_path: Path
) -> None:
    more = {"learner_precision": "bfloat16", "learner_compile": True} if low else {}
    algorithm = build_algorithm(
        settings(model, num_gpus=1, num_env_runners=num_env_runners, **more)
    )
    for _ in range(3):
        row = algorithm.train()["info"]["learner"]
        assert all(np.isfinite(value) for value in row.values())
    algorithm.save_checkpoint(str(tmp_path))
    weights = algorithm.learner_policy.get_weights()
    algorithm.stop()
    resumed = build_algorithm(settings(model, num_env_runners=num_env_runners))
    resumed.load_checkpoint(str(tmp_path))
    for name, weight in resumed.learner_policy.get_weights().items():
        np.testing.assert_array_equal(weight, weights[name])
    resumed.train()
    assert resumed.iteration == 4
    resumed.stop()
