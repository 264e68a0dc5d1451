"""The process that acts for rollout workers, asked without Ray."""

from __future__ import annotations

import asyncio
import os
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from custom_models.configs import LLMPolicyConfig, MLPConfig
from custom_models.history import History
from custom_models.llm_policy import LLMActor
from custom_models.model_config import ModelConfig
from custom_models.spaces import ActionSpec
from rl_service.config.settings import ResourceSettings, Settings
from rl_service.rollout.inference import Answer, InferenceActor
from tests.support.language_models import FULL, SMALL

OBS_SIZE, SPEC = 3, ActionSpec("discrete", 2)


def histories(num_rows: int) -> History:
    obs = np.linspace(-3.0, 9.0, num_rows * OBS_SIZE, dtype=np.float32)
    return History.first_steps(obs.reshape(num_rows, OBS_SIZE), 1, SPEC)


def some_weights(actor: LLMActor, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        name: p.numpy() + 0.1 * rng.standard_normal(p.shape).astype(np.float32)
        for name, p in actor.trainable_state().items()
    }


@pytest.mark.parametrize("kind", [SMALL, FULL], ids=["head", "full"])
def test_each_request_is_answered_with_its_own_weights(kind: LLMPolicyConfig) -> None:
    """Requests of two versions and of several sizes at once, one of them cancelled."""
    model = kind.model_copy(update={"context_length": 1, "task": "Stay.\n"})
    settings = Settings(model=model, resources=ResourceSettings())
    actor = LLMActor(model, OBS_SIZE, SPEC)
    weights = {version: some_weights(actor, version) for version in (3, 4)}
    asked = [(4, 1), (3, 2), (4, 5), (3, 1), (4, 3)]

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")

    async def ask() -> list[Any]:
        inference = InferenceActor(settings, OBS_SIZE, SPEC, visible)
        loop = asyncio.get_running_loop()

        def request(version: int, num_rows: int) -> asyncio.Task[Answer]:
            there: Any = loop.create_future()
            there.set_result(weights[version])
            tokens = actor.write(histories(num_rows))
            return loop.create_task(inference.decide(tokens, version, [there]))

        given_up = request(4, 2)
        tasks = [request(*each) for each in asked]
        await asyncio.sleep(0)
        given_up.cancel()
        return await asyncio.wait_for(asyncio.gather(*tasks), 30.0)

    for (version, num_rows), (dist_inputs, hidden) in zip(asked, asyncio.run(ask()), strict=True):
        actor.load({name: torch.from_numpy(w) for name, w in weights[version].items()})
        with torch.no_grad():
            inputs = actor.encode(histories(num_rows))
            expected = actor(inputs).numpy()
        np.testing.assert_allclose(dist_inputs, expected, rtol=0, atol=1e-5)
        if actor.is_frozen:
            np.testing.assert_allclose(hidden, inputs.numpy(), rtol=0, atol=1e-5)
        else:
            assert hidden is None


class OwnNet(LLMPolicyConfig):
    """With an actor that may write its prompts in another way."""

    implementation: ClassVar[str] = "docs.examples.reward_critic:RewardCriticNet"


class OwnSettings(LLMPolicyConfig):
    """Of the net that ships with the package."""


@pytest.mark.parametrize(
    ("model", "num_workers", "num_gpus", "expected"),
    [
        (FULL, 2, 1, True),
        (OwnSettings(), 2, 1, True),
        (OwnNet(), 2, 1, False),
        (MLPConfig(), 2, 1, False),
        (FULL, 0, 1, False),
        (FULL, 2, 0, False),
    ],
)
def test_workers_ask_for_the_language_model_of_this_package_on_a_gpu(
    model: ModelConfig, num_workers: int, num_gpus: int, expected: bool
) -> None:
    resources = ResourceSettings(num_env_runners=num_workers, num_gpus=num_gpus)
    settings = Settings(model=model, resources=resources)
    assert settings.has_inference_actor == expected
