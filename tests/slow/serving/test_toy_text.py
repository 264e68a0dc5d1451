"""gymnasium's toy-text environments from training to HTTP, as numbers and in words."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import httpx
import numpy as np
import pytest

from custom_models.configs import LLMPolicyConfig
from custom_models.model_config import ModelConfig
from rl_service.config.settings import EnvSettings
from rl_service.policies import load_bundle
from rl_service.rollout.envs import make_env
from rl_service.training.evaluation import evaluate
from rl_service.training.run import Run
from rl_service.training.train import train
from tests.support.recorder import Recorder
from tests.support.services import Start
from tests.support.small_runs import MLP, small_settings

ENVS = {
    "FrozenLake-v1": "frozen_lake",
    "Taxi-v3": "taxi",
    "CliffWalking-v1": "cliff_walking",
    "Blackjack-v1": "blackjack",
}
LLM = LLMPolicyConfig(
    observation="text", critic="hidden_state", n_layer=1, n_head=2, n_embd=16, hidden_sizes=(16,)
)
MODELS = {"mlp": MLP, "llm_policy": LLM}


@pytest.mark.usefixtures("local_ray")
def test_each_trains_and_acts_on_what_its_environment_shows(start: Start, tmp_path: Path) -> None:
    bundles = {
        f"{env[:-3]}-{model}".lower(): _trained(env, MODELS[model], tmp_path / f"{env}-{model}")
        for env in ENVS
        for model in MODELS
    }
    for path in bundles.values():
        policy = load_bundle(path)
        result = evaluate(policy, policy.spec.env, num_episodes=3, seed=7)
        assert np.isfinite(result.mean)
    _, url, _ = start(*(f"{name}={path}" for name, path in bundles.items()))
    with httpx.Client(base_url=url, timeout=60.0) as client:
        for name, path in bundles.items():
            for seed in range(5):
                observation, mask = _first(load_bundle(path).spec.env, seed)
                body = {"observation": observation, "action_mask": mask}
                reply = client.post(f"/v1/policies/{name}/act", json=body)
                assert reply.status_code == 200, reply.text
                assert mask is None or mask[reply.json()["action"]] == 1


def _trained(env: str, model: ModelConfig, folder: Path) -> Path:
    """The bundle of a run of one iteration."""
    settings = small_settings(model, iterations=1, output_dir=folder)
    own = EnvSettings(id=env, max_episode_steps=20, describe=_describe(env, model))
    settings = settings.model_copy(update={"env": own})
    result = train(settings, observer=Recorder(), run=Run.create(settings, command=[]))
    assert result.policy is not None
    return Path(result.policy)


def _describe(env: str, model: ModelConfig) -> str | None:
    return f"rl_service.rollout.toy_text:{ENVS[env]}" if model.reads_text else None


def _first(env: EnvSettings, seed: int) -> tuple[Any, Any]:
    """What a client sends of an episode's first step: the observation, and the mask if there is."""
    with closing(gym.make(env.id)) as made:
        observation, info = made.reset(seed=seed)
    mask = info.get("action_mask")
    if env.describe is not None:
        with closing(make_env(env)) as described:
            row, _ = described.reset(seed=seed)
        observation = "".join(map(chr, row[row > 0].astype(int)))
    observation = list(observation) if isinstance(observation, tuple) else observation
    return observation, None if mask is None else mask.tolist()
