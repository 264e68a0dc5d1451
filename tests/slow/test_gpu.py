"""Training whose learner has a GPU: the same run, other hardware."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_service.algorithms.batch import build_learner_batch
from rl_service.algorithms.build import build_algorithm
from rl_service.algorithms.minibatches import shuffled
from rl_service.config.settings import (
    EvaluationSettings,
    Settings,
    StopSettings,
    TrackingSettings,
)
from rl_service.policies import load_bundle
from rl_service.training.run import Run
from rl_service.training.train import train
from tests.support.learners import assert_all_are_equal
from tests.support.rays import own_ray
from tests.support.recorder import Recorder

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module", autouse=True)
def ray_with_a_gpu() -> Iterator[None]:
    with own_ray(num_gpus=torch.cuda.device_count()):
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


LANGUAGE_MODEL = {
    "name": "llm_policy",
    "n_layer": 1,
    "n_head": 2,
    "n_embd": 16,
    "context_length": 2,
    "task": "Land.\n",
}
MODELS = [
    {"name": "mlp"},
    {"name": "gpt2_critic", "context_length": 8},
    {"name": "gpt2_critic", "context_length": 40, "n_layer": 2, "history_actions": True},
    {"name": "gpt2_critic", "actor_net": "gpt2", "n_layer": 2, "history_actions": True},
    {"name": "gpt2_critic", "actor_net": "stack"},
    LANGUAGE_MODEL,
    {**LANGUAGE_MODEL, "finetune": "lora", "critic": "hidden_state"},
]


def model_id(model: dict[str, Any]) -> str:
    return "-".join(str(model[key]) for key in ("name", "actor_net", "finetune") if key in model)


@pytest.mark.parametrize("model", MODELS, ids=model_id)
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


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("model", MODELS, ids=model_id)
def test_two_gpus_learn_from_a_batch_what_one_does(model: dict[str, Any]) -> None:
    """Without dropout, of which each learner has its own."""
    model = {**model, "dropout": 0.0} if model["name"] == "gpt2_critic" else model
    states, rows = [], []
    for n in (1, 2):
        algorithm = build_algorithm(settings(model, num_gpus=n, num_learners=n))
        rows.append(algorithm.train()["info"]["learner"])
        if n == 2:
            assert_all_are_equal(algorithm)
        states.append(algorithm.learner_policy.get_learner_state()["net"])
        algorithm.stop()
    for name, weight in states[0].items():
        torch.testing.assert_close(states[1][name], weight, rtol=1e-2, atol=2e-3)
    for key in ("policy_loss", "vf_loss", "mean_kl_loss"):
        assert rows[1][key] == pytest.approx(rows[0][key], rel=1e-2, abs=2e-3), key


@pytest.mark.parametrize("num_env_runners", [0, 2])
@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16 compiled"])
@pytest.mark.parametrize("model", MODELS, ids=model_id)
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


@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("finetune", ["head", "lora", "full"])
def test_a_language_model_trains_on_a_gpu_and_its_bundle_acts_on_one(
    finetune: str, low: bool, tmp_path: Path
) -> None:
    """Bundles are checked on the CPU between iterations: the task's prefix is read in both."""
    model = {**LANGUAGE_MODEL, "finetune": finetune}
    precision = "bfloat16" if low else "float32"
    base = settings(model, num_gpus=1, learner_precision=precision)
    run_settings = base.model_copy(
        update={
            "stop": StopSettings(iterations=3),
            "evaluation": EvaluationSettings(interval=1, num_episodes=2, final_num_episodes=2),
            "tracking": TrackingSettings(output_dir=str(tmp_path), tensorboard=False),
        }
    )
    result = train(run_settings, observer=Recorder(), run=Run.create(run_settings, command=[]))
    assert (result.status, result.episodes) == ("finished", 2)
    policy = load_bundle(str(result.policy))
    assert next(policy.actor.parameters()).is_cuda
    obs = np.array(policy.spec.parity.observations, np.float32)
    answers = policy.act(obs, deterministic=True).dist_inputs
    policy.actor.cpu()
    again = policy.act(obs, deterministic=True).dist_inputs
    np.testing.assert_allclose(answers, again, rtol=0, atol=1e-3)


@pytest.mark.parametrize("finetune", ["lora", "full"])
@pytest.mark.parametrize("scoring", ["head", "tokens"])
def test_before_the_first_step_a_learner_in_bfloat16_finds_the_ratio_1(
    finetune: str, scoring: str
) -> None:
    """Its workers sample in float32, on a CPU."""
    model = {**LANGUAGE_MODEL, "finetune": finetune, "action_scoring": scoring}
    here = build_algorithm(settings(model))
    there = build_algorithm(settings(model, num_gpus=1, learner_precision="bfloat16"))
    there.learner_policy.set_weights(here.learner_policy.get_weights())
    policy, samples = there.learner_policy, here.env_runner.sample(128)
    rows = build_learner_batch(policy, samples).actor
    for part in shuffled(rows, policy.permutation("actor", len(rows.inputs)), 8):
        dist = policy.action_distribution(part)
        ratio = (dist.log_prob(part.actions) - part.action_logp).exp()
        torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=2e-3)
    for algorithm in (here, there):
        algorithm.stop()
