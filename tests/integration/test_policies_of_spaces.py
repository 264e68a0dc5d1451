"""What a run leaves in environments of all spaces: a bundle that is evaluated and served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import httpx
import numpy as np
import pytest

from custom_models.model_config import ModelConfig
from docs.examples.text_env import Needs
from rl_service.config.settings import EnvSettings
from rl_service.policies import load_bundle
from rl_service.training.evaluation import evaluate
from rl_service.training.run import Run
from rl_service.training.train import train
from tests.support.language_models import READER
from tests.support.locks import Locks
from tests.support.recorder import Recorder
from tests.support.serving import as_json, ask
from tests.support.small_runs import MLP, small_settings

pytestmark = pytest.mark.usefixtures("local_ray")

NEEDS = EnvSettings(id="docs.examples.text_env:Needs", max_episode_steps=20)
LOCKS = EnvSettings(id="tests.support.locks:Locks", observation_filter="MeanStdFilter")


@pytest.mark.parametrize(
    ("settings", "model", "make"),
    [
        (LOCKS, MLP, Locks),
        (EnvSettings(id="Blackjack-v1"), MLP, lambda: gym.make("Blackjack-v1")),
        (
            EnvSettings(id="Taxi-v3", max_episode_steps=20),
            MLP,
            lambda: gym.make("Taxi-v3", max_episode_steps=20),
        ),
        (NEEDS, READER, Needs),
    ],
    ids=["dict", "tuple", "masked", "text"],
)
def test_a_run_leaves_a_policy_that_is_evaluated_and_served(
    settings: EnvSettings, model: ModelConfig, make: Any, tmp_path: Path
) -> None:
    base = small_settings(model, iterations=1, output_dir=tmp_path)
    run = Run.create(base.model_copy(update={"env": settings}), command=[])
    train(run.settings, observer=Recorder(), run=run)
    policy = load_bundle(run.bundle_path)
    expected = evaluate(policy, settings, num_episodes=2, seed=11)

    async def play(client: httpx.AsyncClient) -> list[float]:
        env, returns = make(), []
        for seed in (11, 12):
            obs, info = env.reset(seed=seed)
            total, ended = 0.0, False
            while not ended:
                body, offered = {"observation": as_json(obs)}, info.get("admissible_actions")
                if offered is not None:
                    body["observation"] = {"text": obs, "admissible_actions": offered}
                elif "action_mask" in info:
                    body["action_mask"] = info["action_mask"].tolist()
                action = (await client.post("/v1/policies/p/act", json=body)).json()["action"]
                if offered is not None:
                    action = offered[action]
                elif isinstance(action, list):
                    action = np.array(action)
                obs, reward, terminated, truncated, info = env.step(action)
                total, ended = total + float(reward), terminated or truncated
            returns.append(total)
        return returns

    assert ask(run.bundle_path, play) == pytest.approx(expected.returns)
