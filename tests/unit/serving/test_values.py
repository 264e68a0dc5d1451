"""What the critic expects, over HTTP: as if the critic were asked for the whole episode at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import gymnasium as gym
import httpx
import numpy as np
import pytest
import torch

from custom_models.configs import GPT2CriticConfig, LLMPolicyConfig, MLPConfig
from custom_models.interfaces import Chunks
from custom_models.model_config import ModelConfig
from rl_service.policies import load_bundle
from tests.conftest import WriteTestBundle
from tests.support.serving import NumberedBundles, build_local

NUM_STEPS = 7
GPT2 = GPT2CriticConfig(context_length=4, n_layer=1, n_head=2, n_embd=16, attention="window")
LAYERS = [GPT2.model_copy(update={"n_layer": n, "attention": "banded"}) for n in (1, 2, 3)]
CASES = [
    (GPT2, "CartPole-v1"),
    (GPT2, "Pendulum-v1"),
    *((model, "CartPole-v1") for model in LAYERS),
    (GPT2.model_copy(update={"actor_net": "stack", "history_actions": True}), "Pendulum-v1"),
    (
        GPT2.model_copy(
            update={
                "attention": "banded",
                "actor_net": "gpt2",
                "actor_context_length": 5,
                "history_actions": True,
                "n_layer": 2,
            }
        ),
        "Pendulum-v1",
    ),
    (MLPConfig(), "CartPole-v1"),
]


@pytest.mark.parametrize(
    ("model", "env_id"),
    CASES,
    ids=["discrete", "box", "one layer", "two layers", "three layers", "stack", "gpt2", "mlp"],
)
def test_values_are_those_of_the_critic(
    model: ModelConfig, env_id: str, tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    net = write_test_bundle(tmp_path / "b", env_id, model=model, filtered=True)
    env = gym.make(env_id)

    async def play() -> tuple[list[Any], list[Any], list[float], list[float]]:
        app, _, _ = await build_local(NumberedBundles("p", {1: tmp_path / "b"}))
        transport = httpx.ASGITransport(app=app)
        seen, taken, in_session, carried = [], [], [], []
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            opened = (await client.post("/v1/sessions", json={"policy": "p", "value": True})).json()
            path = f"/v1/sessions/{opened['session']}/act"
            obs, _ = env.reset(seed=3)
            for _ in range(NUM_STEPS):
                body: dict[str, Any] = {"observation": obs.tolist()}
                acted = (await client.post(path, json=body)).json()
                in_session.append(acted["value"])
                body |= {"value": True, "history": {"observations": seen, "actions": taken}}
                alone = (await client.post("/v1/policies/p/act", json=body)).json()
                carried.append(alone["value"])
                seen, taken = [*seen, obs.tolist()], [*taken, alone["policy_action"]]
                obs, *_ = env.step(np.asarray(acted["action"]).reshape(env.action_space.shape))
        return seen, taken, in_session, carried

    seen, taken, in_session, carried = asyncio.run(play())
    policy = load_bundle(tmp_path / "b")
    assert policy.normalizer is not None and net.critic is not None
    normalised = policy.normalizer(np.array(seen, np.float32))
    actions = np.array(taken, np.int64 if net.action_spec.kind == "discrete" else np.float32)
    chunks = Chunks(
        torch.from_numpy(normalised)[None],
        torch.from_numpy(actions)[None],
        torch.zeros(1, NUM_STEPS),
        torch.arange(NUM_STEPS)[None],
        torch.zeros(1, NUM_STEPS, dtype=torch.int64),
    )
    with torch.no_grad():
        outputs = net.critic.eval()(chunks, NUM_STEPS)[0].numpy()
    expected = policy.spec.value_mean + policy.spec.value_std * outputs
    np.testing.assert_allclose(in_session, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(carried, expected, rtol=0, atol=1e-5)
    assert np.std(expected) > 1e-4  # and they do differ


def test_a_critic_on_hidden_states_is_refused(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    model = LLMPolicyConfig(n_layer=1, n_head=2, n_embd=16, critic="hidden_state")
    write_test_bundle(tmp_path / "b", model=model)

    async def ask() -> list[httpx.Response]:
        app, _, _ = await build_local(NumberedBundles("p", {1: tmp_path / "b"}))
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            body = {"observation": [0.0] * 4, "value": True}
            return [
                await client.post("/v1/policies/p/act", json=body),
                await client.post("/v1/sessions", json={"policy": "p", "value": True}),
                await client.post("/v1/policies/p/act", json={"observation": [0.0] * 4}),
            ]

    *refused, acted = asyncio.run(ask())
    assert [reply.status_code for reply in refused] == [422, 422]
    assert {reply.json()["error"]["code"] for reply in refused} == {"no_value"}
    assert acted.status_code == 200
