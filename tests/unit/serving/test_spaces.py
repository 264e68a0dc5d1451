"""Observations, actions and masks of all kinds over HTTP, against the application without Ray."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import httpx
import jsonschema_rs
import numpy as np
import pytest
from gymnasium import spaces

from custom_models.configs import MLPConfig
from custom_models.history import RunningHistory
from rl_service.policies import load_bundle
from rl_service.serving.client import AsyncPolicyClient, PolicyServiceError
from rl_service.serving.documentation import example_observation
from tests.conftest import WriteTestBundle
from tests.support.locks import Locks
from tests.support.serving import NumberedBundles, as_json, ask, build_local, write_for_spaces

STACK = MLPConfig(actor_net="stack", actor_context_length=3, history_actions=True)
SMALL = MLPConfig(hidden_sizes=(8,), critic_hidden_sizes=(8,))
ACT, SESSIONS = "/v1/policies/p/act", "/v1/sessions"


@pytest.mark.parametrize("model", [SMALL, STACK], ids=["mlp", "stack"])
def test_sessions_and_carried_histories_act_as_a_local_loop(
    tmp_path: Path, write_test_bundle: WriteTestBundle, model: MLPConfig
) -> None:
    """With a Dict that brings its mask, and several choices in an action; the env is strict."""
    write_test_bundle(tmp_path / "b", "tests.support.locks:Locks", model=model, filtered=True)
    policy, env = load_bundle(tmp_path / "b"), Locks()
    history = RunningHistory(1, policy.actor.context_length, policy.action_spec)
    steps = []
    obs, _ = env.reset(seed=4)
    for _ in range(8):
        row, mask = policy.reader.read(obs)
        assert mask is not None
        seen = history.observed(row[None].copy())
        answer = policy.act(row[None], deterministic=True, history=seen, mask=mask[None])
        history.acted(answer.actions)
        steps.append((as_json(obs), answer))
        obs, *_ = env.step(answer.env_actions[0])

    async def asking(client: httpx.AsyncClient) -> None:
        opened = (await client.post(SESSIONS, json={"policy": "p"})).json()
        carried: dict[str, list[Any]] = {"observations": [], "actions": []}
        for obs, expected in steps:
            body = {"observation": obs}
            in_session = await client.post(f"{SESSIONS}/{opened['session']}/act", json=body)
            alone = await client.post(ACT, json=body | {"history": carried})
            together = await client.post(
                ACT, json={"observations": [obs] * 2, "history": [carried] * 2}
            )
            assert together.json()["actions"] == [alone.json()["action"]] * 2
            for reply in (in_session.json(), alone.json()):
                assert reply["action"] == expected.env_actions[0].tolist()
                assert reply["log_prob"] == pytest.approx(float(expected.log_prob[0]), abs=1e-6)
            carried["observations"].append(obs)
            carried["actions"].append(expected.actions[0].tolist())

    ask(tmp_path / "b", asking)


KINDS: dict[str, tuple[gym.Space[Any], gym.Space[Any], Any]] = {
    "discrete": (spaces.Discrete(5, start=1), spaces.Discrete(3, start=4), 5),
    "tuple": (
        spaces.Tuple((spaces.Discrete(4), spaces.Box(-1, 1, (2,)))),
        spaces.MultiBinary((2, 2)),
        [3, [0.5, -1]],
    ),
    "multi_discrete": (
        spaces.MultiDiscrete([3, 4]),
        spaces.MultiDiscrete([2, 3], start=[1, -1]),
        [2, 0],
    ),
    "multi_binary": (spaces.MultiBinary(4), spaces.Box(-2.0, 2.0, (1, 2)), [1, 0, 0, 1]),
    "dict": (
        spaces.Dict({"x": spaces.Discrete(2), "in": spaces.Dict({"y z": spaces.MultiBinary(2)})}),
        spaces.Discrete(2),
        {"x": 1, "in": {"y z": [0, 1]}},
    ),
    "text": (spaces.Text(20), spaces.Discrete(2), "go \u2192 left"),
}


@pytest.mark.parametrize(("observations", "actions", "given"), KINDS.values(), ids=KINDS)
def test_act_takes_what_the_environment_gives_and_answers_what_it_takes(
    observations: gym.Space[Any], actions: gym.Space[Any], given: Any, tmp_path: Path
) -> None:
    write_for_spaces(tmp_path / "b", observations, actions)
    policy = load_bundle(tmp_path / "b")
    row, _ = policy.reader.read(given)
    expected = policy.act(row[None], deterministic=True).env_actions[0].tolist()

    async def asking(client: httpx.AsyncClient) -> None:
        one = (await client.post(ACT, json={"observation": given})).json()
        assert one["action"] == expected
        two = (await client.post(ACT, json={"observations": [given, given]})).json()
        np.testing.assert_allclose(two["actions"], [expected] * 2, atol=1e-6)
        described = (await client.get("/v1/policies/p")).json()
        assert described["observation_space"]["type"] == type(observations).__name__
        assert described["action_space"]["type"] == type(actions).__name__
        document = (await client.get("/openapi.json")).json()
        post = document["paths"][ACT]["post"]
        content = post["requestBody"]["content"]["application/json"]
        body = jsonschema_rs.Draft202012Validator(content["schema"])
        reply = post["responses"]["200"]["content"]["application/json"]["schema"]
        assert jsonschema_rs.Draft202012Validator(reply).is_valid(one)
        assert jsonschema_rs.Draft202012Validator(reply).is_valid(two)
        assert body.is_valid({"observation": given})
        assert not body.is_valid({"observation": [given]})
        assert (await client.post(ACT, json={"observation": [given]})).status_code == 422
        example = content["example"]
        assert body.is_valid(example)
        assert (await client.post(ACT, json=example)).status_code == 200

    ask(tmp_path / "b", asking)


def test_the_example_of_a_masked_policy_is_answered(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "b", "tests.support.locks:Locks", model=SMALL)

    async def asking(client: httpx.AsyncClient) -> None:
        document = (await client.get("/openapi.json")).json()
        content = document["paths"][ACT]["post"]["requestBody"]["content"]["application/json"]
        assert content["example"]["observation"]["action_mask"] == [1.0] * 10
        assert (await client.post(ACT, json=content["example"])).status_code == 200

    ask(tmp_path / "b", asking)


def test_the_example_of_a_mask_of_small_integers_allows_all(tmp_path: Path) -> None:
    mask = spaces.MultiDiscrete([2, 2, 2])
    observed = spaces.Dict({"x": spaces.Discrete(3), "action_mask": mask})
    write_for_spaces(tmp_path / "b", observed, spaces.Discrete(3))
    policy = load_bundle(tmp_path / "b")
    example = example_observation(policy.spec)
    assert example["action_mask"] == [1, 1, 1]
    _, allowed = policy.reader.read(example)
    assert allowed is not None and allowed.all()


TAXI = (spaces.Discrete(500), spaces.Discrete(6))


def test_a_forbidden_action_is_never_answered(tmp_path: Path) -> None:
    write_for_spaces(tmp_path / "b", *TAXI)
    allowed = [0, 1, 0, 0, 1, 0]

    async def asking(client: httpx.AsyncClient) -> None:
        body = {"observations": [7] * 500, "deterministic": False}
        everything = (await client.post(ACT, json=body)).json()["actions"]
        assert set(everything) == set(range(6))
        some = (await client.post(ACT, json=body | {"action_mask": [allowed] * 500})).json()
        assert set(some["actions"]) == {1, 4}
        np.testing.assert_allclose(np.exp(some["log_prob"]), 0.5, atol=0.05)
        opened = (await client.post(SESSIONS, json={"policy": "p"})).json()
        path = f"{SESSIONS}/{opened['session']}/act"
        for only in range(6):
            mask = [i == only for i in range(6)]
            for way in (ACT, path):
                reply = await client.post(way, json={"observation": 7, "action_mask": mask})
                assert (reply.json()["action"], reply.json()["log_prob"]) == (only, 0.0)

    ask(tmp_path / "b", asking)


BAD_MASKS: dict[str, tuple[Any, str]] = {
    "all zero": ([0] * 6, "allows no action; expected 6 zeros and ones"),
    "short": ([1] * 5, "has 5 entries, .* expected 6 zeros and ones"),
    "long": ([1] * 7, "has 7 entries"),
    "fractions": ([0.5] * 6, "action_mask"),
    "other numbers": ([2] * 6, "action_mask"),
    "a text": ("111111", "action_mask"),
    "two masks": ([[1] * 6] * 2, "action_mask"),
}


@pytest.mark.parametrize(("mask", "message"), BAD_MASKS.values(), ids=BAD_MASKS)
def test_a_bad_mask_is_refused_with_what_is_expected(
    mask: Any, message: str, tmp_path: Path
) -> None:
    write_for_spaces(tmp_path / "b", *TAXI)

    async def asking(client: httpx.AsyncClient) -> None:
        opened = (await client.post(SESSIONS, json={"policy": "p"})).json()
        for path in (ACT, f"{SESSIONS}/{opened['session']}/act"):
            reply = await client.post(path, json={"observation": 7, "action_mask": mask})
            assert reply.status_code == 422, reply.text
            assert re.search(message, reply.json()["error"]["message"])

    ask(tmp_path / "b", asking)


BAD_BATCHES: dict[str, dict[str, Any]] = {
    "one mask for two": {"observations": [7, 7], "action_mask": [[1] * 6]},
    "a flat mask for two": {"observations": [7, 7], "action_mask": [1] * 6},
    "one all zero": {"observations": [7, 7], "action_mask": [[1] * 6, [0] * 6]},
    "a choice too many": {"observations": [7, 500]},
    "a fraction": {"observation": 7.5},
    "a truth": {"observation": True},
    "a history of another kind": {
        "observation": 7,
        "history": {"observations": [[7]], "actions": [1]},
    },
}


@pytest.mark.parametrize("body", BAD_BATCHES.values(), ids=BAD_BATCHES)
def test_what_does_not_fit_the_spaces_is_refused(body: dict[str, Any], tmp_path: Path) -> None:
    write_for_spaces(tmp_path / "b", *TAXI)

    async def asking(client: httpx.AsyncClient) -> None:
        reply = await client.post(ACT, json=body)
        assert reply.status_code == 422, reply.text
        assert reply.json()["error"]["message"].isprintable()

    ask(tmp_path / "b", asking)


def test_rows_that_would_not_fit_into_memory_are_not_made(tmp_path: Path) -> None:
    """4096 empty texts are 12 KB of JSON, and were more than 500 MB of rows."""
    write_for_spaces(tmp_path / "b", spaces.Text(2**15), spaces.Discrete(2))

    async def asking(client: httpx.AsyncClient) -> None:
        refused = await client.post(ACT, json={"observations": [""] * 4096})
        assert refused.status_code == 413
        message = "observations hold 4096 rows; send 1024 at most, as each one is long"
        assert refused.json()["error"]["message"] == message
        assert (await client.post(ACT, json={"observations": [""] * 100})).status_code == 200

    ask(tmp_path / "b", asking)


def test_a_wrong_part_is_named(tmp_path: Path) -> None:
    space = spaces.Dict({"position": spaces.MultiDiscrete([3, 2]), "on": spaces.Discrete(2)})
    write_for_spaces(tmp_path / "b", space, spaces.Discrete(2))
    wrong = {
        "observation": ({"position": [2, 2], "on": 1}, "observation.position[1]: expected an"),
        "observations": ([{"position": [2, 1], "on": 1}, {"position": [2]}], "observations.1.on"),
    }

    async def asking(client: httpx.AsyncClient) -> None:
        for key, (given, message) in wrong.items():
            reply = await client.post(ACT, json={key: given})
            assert reply.status_code == 422
            assert reply.json()["error"]["message"].startswith(message), reply.text

    ask(tmp_path / "b", asking)


def test_a_mask_for_numbers_is_refused(tmp_path: Path, write_test_bundle: WriteTestBundle) -> None:
    write_test_bundle(tmp_path / "b", "Pendulum-v1", model=SMALL)

    async def asking(client: httpx.AsyncClient) -> None:
        body = {"observation": [0.0] * 3, "action_mask": [1]}
        assert (await client.post(ACT, json=body)).status_code == 422
        del body["action_mask"]
        assert (await client.post(ACT, json=body)).status_code == 200

    ask(tmp_path / "b", asking)


def test_the_python_client_takes_what_the_environment_gives(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    """Arrays, tuples and NumPy's numbers, wherever they stand; the env raises at a wrong action."""
    write_test_bundle(tmp_path / "locks", "tests.support.locks:Locks", model=SMALL)
    pair = spaces.Tuple((spaces.Discrete(32), spaces.Box(-1, 1, (2,))))
    write_for_spaces(tmp_path / "pair", pair, spaces.MultiDiscrete([2, 2]))

    async def play() -> None:
        names = ("locks", "pair")
        app, _, _ = await build_local(*(NumberedBundles(n, {1: tmp_path / n}) for n in names))
        transport = httpx.ASGITransport(app=app)
        async with AsyncPolicyClient("http://test", transport=transport) as client:
            env = Locks("info")
            obs, info = env.reset(seed=1)
            shown = {**obs, "action_mask": info["action_mask"]}
            first = (await client.act("locks", shown)).action
            both = (await client.act_batch("locks", [shown, shown])).actions
            assert both.tolist() == [first.tolist()] * 2
            async with client.session("locks") as session:
                for _ in range(19):
                    action = (await session.act({**obs, **info}, reward=0.5)).action
                    assert action.dtype.kind == "i"
                    obs, _, _, _, info = env.step(action)
            drawn = (np.int64(31), np.array([0.5, -0.5], np.float32))
            mask = (np.array([0, 1], np.int8), np.array([1, 0], np.int8))
            assert (await client.act("pair", drawn, action_mask=mask)).action.tolist() == [1, 0]
            rows = np.array([[0, 1, 1, 0], [1, 0, 0, 1]], np.bool_)
            batch = await client.act_batch("pair", [drawn] * 2, action_masks=rows)
            assert batch.actions.tolist() == [[1, 0], [0, 1]]
            with pytest.raises(PolicyServiceError, match="not sent"):
                await client.act("pair", (1, np.array([0.5, np.nan])))

    asyncio.run(play())
