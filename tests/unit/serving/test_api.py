"""Every route, and every bad request, against the application without Ray."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import httpx
import jsonschema_rs
import numpy as np
import pytest

from custom_models.configs import LLMPolicyConfig
from custom_models.history import RunningHistory
from rl_service.policies import load_bundle
from rl_service.serving.inputs import Limits
from rl_service.serving.refusals import RequestError
from rl_service.serving.security import Tokens
from rl_service.serving.service import Sessions
from tests.conftest import WriteTestBundle
from tests.support.serving import NumberedBundles, build_local

ACT, SESSIONS = "/v1/policies/cartpole/act", "/v1/sessions"
LIMITS = Limits(max_body_bytes=20_000, max_batch_size=8, max_sessions=2)
TOKEN = "t" * 20
NO_STEPS = [{"observations": [], "actions": []}]
OBSERVATION = [0.1, 0.2, 0.3, 0.4]

Ask = Callable[[httpx.AsyncClient], Awaitable[Any]]


@pytest.fixture
def folder(tmp_path: Path, write_test_bundle: WriteTestBundle) -> Path:
    write_test_bundle(tmp_path / "b")
    return tmp_path / "b"


def with_client(source: NumberedBundles, ask: Ask, **options: Any) -> Any:
    async def play() -> Any:
        app, _, _ = await build_local(source, **{"limits": LIMITS, **options})
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await ask(client)

    return asyncio.run(play())


def cartpole(folder: Path) -> NumberedBundles:
    return NumberedBundles("cartpole", {1: folder})


def test_every_route_answers(folder: Path) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        paths = ("/healthz", "/readyz", "/metrics", "/docs", "/", "/openapi.json", "/v1/policies")
        for path in (*paths, "/v1/policies/cartpole", "/v1/policies/cartpole:1"):
            assert (await client.get(path)).status_code == 200, path
        one = (await client.post(ACT, json={"observation": OBSERVATION})).json()
        assert one.keys() == {"action", "log_prob", "policy", "version", "request_id"}
        two = (await client.post(ACT, json={"observations": [OBSERVATION] * 2})).json()
        assert two.keys() == {"actions", "log_prob", "policy", "version", "request_id"}
        assert two["actions"] == [one["action"]] * 2
        opened = (await client.post(SESSIONS, json={"policy": "cartpole"})).json()
        path = f"{SESSIONS}/{opened['session']}"
        for step in range(2):
            body = {"observation": OBSERVATION, "reward": 1.5}
            acted = (await client.post(f"{path}/act", json=body)).json()
            assert (acted["action"], acted["step"]) == (one["action"], step)
        closed = (await client.delete(path)).json()
        assert (closed["num_steps"], closed["episode_return"]) == (2, 3.0)
        assert (await client.delete(path)).status_code == 404

    with_client(cartpole(folder), ask)


def test_actions_are_those_of_the_bundle(folder: Path) -> None:
    obs = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)

    async def ask(client: httpx.AsyncClient) -> Any:
        return (await client.post(ACT, json={"observations": obs.tolist()})).json()

    reply = with_client(cartpole(folder), ask)
    expected = load_bundle(folder).act(obs, deterministic=True)
    assert reply["actions"] == expected.env_actions.tolist()
    np.testing.assert_array_equal(np.float32(reply["log_prob"]), expected.log_prob)


JSON = {"Content-Type": "application/json"}
BAD_REQUESTS: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "wrong length": ("POST", ACT, {"json": {"observation": [1.0]}}, 422),
    "wrong type": ("POST", ACT, {"json": {"observation": "left"}}, 422),
    "wrong nesting": ("POST", ACT, {"json": {"observation": [OBSERVATION]}}, 422),
    "ragged batch": ("POST", ACT, {"json": {"observations": [OBSERVATION, [1.0]]}}, 422),
    "empty batch": ("POST", ACT, {"json": {"observations": []}}, 422),
    "huge batch": ("POST", ACT, {"json": {"observations": [OBSERVATION] * 9}}, 413),
    "both": ("POST", ACT, {"json": {"observation": [], "observations": []}}, 422),
    "neither": ("POST", ACT, {"json": {}}, 422),
    "NaN": ("POST", ACT, {"content": '{"observation": [NaN, 0, 0, 0]}', "headers": JSON}, 422),
    "infinity": ("POST", ACT, {"content": '{"observation": [1e999,0,0,0]}', "headers": JSON}, 422),
    "beyond float32": ("POST", ACT, {"json": {"observation": [1e300, 0, 0, 0]}}, 422),
    "deep JSON": ("POST", ACT, {"content": "[" * 9999, "headers": JSON}, 400),
    "no JSON": ("POST", ACT, {"content": "left", "headers": JSON}, 400),
    "no body": ("POST", ACT, {"headers": JSON}, 400),
    "huge body": ("POST", ACT, {"content": "[" * 30_000, "headers": JSON}, 413),
    "a form": ("POST", ACT, {"data": {"observation": "1"}}, 415),
    "text": ("POST", ACT, {"content": "{}", "headers": {"Content-Type": "text/plain"}}, 415),
    "no content type": ("POST", ACT, {"content": "{}"}, 415),
    "surplus key": ("POST", ACT, {"json": {"observation": OBSERVATION, "file": "x"}}, 422),
    "history of another length": (
        "POST", ACT,
        {"json": {"observation": OBSERVATION, "history": NO_STEPS * 2}},
        422,
    ),
    "unknown policy": ("POST", "/v1/policies/cartpool/act", {"json": {}}, 404),
    "a path": ("GET", "/v1/policies/..%2f..%2fetc%2fpasswd", {}, 404),
    "a null byte": ("GET", "/v1/policies/%00", {}, 404),
    "unknown version": ("GET", "/v1/policies/cartpole:7", {}, 404),
    "no version": ("GET", "/v1/policies/cartpole:latest", {}, 404),
    "an alias": ("GET", "/v1/policies/cartpole@best", {}, 404),
    "unknown route": ("GET", "/v2", {}, 404),
    "unknown method": ("PUT", ACT, {}, 405),
    "session of unknown policy": ("POST", SESSIONS, {"json": {"policy": "x"}}, 404),
    "session of a number": ("POST", SESSIONS, {"json": {"policy": 1}}, 422),
    "unknown session": ("POST", f"{SESSIONS}/x/act", {"json": {"observation": OBSERVATION}}, 404),
    "close unknown session": ("DELETE", f"{SESSIONS}/x", {}, 404),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_REQUESTS.values(), ids=BAD_REQUESTS)
def test_a_bad_request_gets_the_one_error_shape(
    case: tuple[str, str, dict[str, Any], int], folder: Path
) -> None:
    method, path, content, status = case
    given = {**content.get("headers", {}), "X-Request-ID": "mine"}

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await client.request(method, path, **{**content, "headers": given})

    reply = with_client(cartpole(folder), ask)
    assert reply.status_code == status, reply.text
    assert reply.json().keys() == {"error"}
    error = reply.json()["error"]
    assert error.keys() == {"code", "message", "request_id"}
    assert error["request_id"] == "mine"
    assert error["message"].isprintable()


def test_a_slash_at_the_end_changes_nothing(folder: Path) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        for path in ("/healthz/", "/docs/", "/v1/policies/", "/v1/policies/cartpole/"):
            assert (await client.get(path)).status_code == 200, path
        acted = await client.post(f"{ACT}/", json={"observation": OBSERVATION})
        assert acted.status_code == 200
        opened = await client.post(f"{SESSIONS}/", json={"policy": "cartpole"})
        path = f"{SESSIONS}/{opened.json()['session']}"
        assert (await client.post(f"{path}/act/", json={"observation": OBSERVATION})).is_success
        assert (await client.delete(f"{path}/")).status_code == 200
        assert (await client.get("//v1/policies")).json()["error"]["code"] == "not_found"

    with_client(cartpole(folder), ask)


@pytest.mark.parametrize("given", ["x" * 129, "größe".encode("latin-1"), b"\xff\xfe", "a b", ""])
def test_a_request_id_that_no_log_can_hold_is_replaced(given: Any, folder: Path) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        reply = await client.get("/v1/policies", headers={"X-Request-ID": given})
        assert len(reply.json()["request_id"]) == 16

    with_client(cartpole(folder), ask)


LARGEST = 3.4028234663852886e38
BODIES: dict[str, list[Any]] = {
    ACT: [
        {"observation": OBSERVATION},
        {"observation": OBSERVATION, "observations": None, "history": None},
        {"observations": [OBSERVATION], "observation": None},
        {"observations": [OBSERVATION] * 8},
        {"observations": [OBSERVATION] * 9},
        {"observations": []},
        {"observation": [LARGEST] * 4},
        {"observation": [3.5e38] * 4},
        {"observations": [[-3.5e38] * 4]},
        {"observation": OBSERVATION, "deterministic": None},
        {"observation": OBSERVATION, "value": None},
        {"observation": OBSERVATION, "value": 1},
        {"observation": None, "observations": None},
        {"observation": [True] * 4},
        {"observation": [1] * 4, "history": {"observations": [], "actions": []}},
    ],
    SESSIONS: [{"policy": name} for name in ("cartpole", "", None, 1, "x" * 201)],
    f"{SESSIONS}/{{session}}/act": [
        {"observation": OBSERVATION, "reward": reward} for reward in (None, 1, -2.5, "1", True)
    ],
}


@pytest.mark.parametrize("path", BODIES)
def test_the_documented_bounds_are_those_of_the_service(path: str, folder: Path) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        document = (await client.get("/openapi.json")).json()
        content = document["paths"][path]["post"]["requestBody"]["content"]
        documented = jsonschema_rs.Draft202012Validator(content["application/json"]["schema"])
        for body in BODIES[path]:
            opened = (await client.post(SESSIONS, json={"policy": "cartpole"})).json()
            reply = await client.post(path.format(**opened), json=body)
            assert reply.is_success == documented.is_valid(body), (body, reply.text)
            await client.delete(f"{SESSIONS}/{opened['session']}")

    with_client(cartpole(folder), ask, limits=LIMITS.model_copy(update={"max_sessions": 100}))


def test_a_token_is_needed_where_there_are_tokens(folder: Path) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        for path in ("/healthz", "/readyz", "/", "/docs"):
            assert (await client.get(path)).status_code == 200
        for path in ("/v1/policies", "/metrics", "/openapi.json"):
            refused = await client.get(path, headers={"Authorization": "Bearer nonsense"})
            assert refused.status_code == 401
            assert refused.headers["WWW-Authenticate"] == "Bearer"
            good = await client.get(path, headers={"Authorization": f"Bearer {TOKEN}"})
            assert good.status_code == 200

    tokens = Tokens(None, {"RL_SERVICE_TOKENS": f"alice: {TOKEN}"})
    with_client(cartpole(folder), ask, tokens=tokens)


def test_sessions_are_bounded_and_expire(folder: Path) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        opened = [await client.post(SESSIONS, json={"policy": "cartpole"}) for _ in range(3)]
        assert [each.status_code for each in opened] == [200, 200, 503]
        assert 1 <= int(opened[2].headers["Retry-After"]) <= 60
        await asyncio.sleep(0.3)
        path = f"{SESSIONS}/{opened[0].json()['session']}/act"
        expired = await client.post(path, json={"observation": OBSERVATION})
        assert (expired.status_code, expired.json()["error"]["code"]) == (404, "unknown_session")

    limits = Limits(max_sessions=2, session_ttl_s=0.2)
    with_client(cartpole(folder), ask, limits=limits)


def test_too_many_requests_at_once_are_told_when_to_come_again(folder: Path) -> None:
    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        body = {"observation": OBSERVATION}
        return await asyncio.gather(*(client.post(ACT, json=body) for _ in range(20)))

    replies = with_client(cartpole(folder), ask, limits=Limits(max_ongoing_requests=4))
    busy = [reply for reply in replies if reply.status_code == 503]
    assert busy and all(reply.headers["Retry-After"] == "1" for reply in busy)
    assert {reply.status_code for reply in replies} == {200, 503}


def test_a_body_that_does_not_arrive_is_no_work_and_has_a_deadline(folder: Path) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        waiting = asyncio.Event()

        async def stalled() -> AsyncIterator[bytes]:
            yield b"{"
            waiting.set()
            await asyncio.sleep(60)

        headers = {"Content-Type": "application/json"}
        slow = asyncio.create_task(client.post(ACT, content=stalled(), headers=headers))
        await waiting.wait()
        assert (await client.post(ACT, json={"observation": OBSERVATION})).status_code == 200
        late = await slow
        assert (late.status_code, late.json()["error"]["code"]) == (408, "request_timeout")

    limits = Limits(max_ongoing_requests=1, body_timeout_s=0.3)
    with_client(cartpole(folder), ask, limits=limits)


def test_a_repeated_step_is_taken_once(folder: Path) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        opened = (await client.post(SESSIONS, json={"policy": "cartpole"})).json()
        path, body = f"{SESSIONS}/{opened['session']}/act", {"observation": OBSERVATION}
        same = {"X-Request-ID": "once"}
        first, again = [await client.post(path, json=body, headers=same) for _ in range(2)]
        assert first.json() == again.json()
        assert (await client.post(path, json=body)).json()["step"] == 1

    with_client(cartpole(folder), ask)


def test_replicas_take_turns_in_one_session(folder: Path) -> None:
    """What one of them remembers of a session is out of date when it is asked again."""

    async def play() -> None:
        _, service, shared = await build_local(cartpole(folder))
        replicas = [Sessions(service.policies, service.loader, shared, LIMITS) for _ in range(2)]
        opened = await replicas[0].open(b'{"policy": "cartpole"}')
        body = json.dumps({"observation": OBSERVATION}).encode()
        for step, replica in enumerate((0, 0, 1, 1, 0, 1)):
            reply = await replicas[replica].act(opened["session"], body, f"r{step}")
            assert reply["step"] == step
        await replicas[1].close(opened["session"])
        with pytest.raises(RequestError, match="no such session"):
            await replicas[0].act(opened["session"], body, "late")

    asyncio.run(play())


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_sessions_and_carried_histories_act_as_a_local_loop(
    env: str, tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    model = LLMPolicyConfig(context_length=3, n_layer=1, n_head=2, n_embd=16)
    write_test_bundle(tmp_path / "b", env, model=model)
    policy, made = load_bundle(tmp_path / "b"), gym.make(env)
    steps = []
    history = RunningHistory(1, 3, policy.action_spec)
    obs, _ = made.reset(seed=1)
    for _ in range(6):
        answer = policy.act(
            obs[None], deterministic=True, history=history.observed(obs[None].copy())
        )
        history.acted(answer.actions)
        steps.append((obs, answer))
        obs, *_ = made.step(answer.env_actions[0])

    async def ask(client: httpx.AsyncClient) -> None:
        opened = (await client.post(SESSIONS, json={"policy": "p"})).json()
        carried: dict[str, list[Any]] = {"observations": [], "actions": []}
        for obs, expected in steps:
            body = {"observation": obs.tolist()}
            path = f"{SESSIONS}/{opened['session']}/act"
            stateless = {**body, "history": carried}
            for reply in (
                await client.post(path, json=body),
                await client.post("/v1/policies/p/act", json=stateless),
            ):
                assert reply.json()["action"] == expected.env_actions[0].tolist()
                assert np.float32(reply.json()["log_prob"]) == expected.log_prob[0]
            carried["observations"].append(obs.tolist())
            carried["actions"].append(reply.json()["policy_action"])

    with_client(NumberedBundles("p", {1: tmp_path / "b"}), ask)


def test_metrics_count_what_was_asked(folder: Path) -> None:
    async def ask(client: httpx.AsyncClient) -> str:
        await client.post(ACT, json={"observations": [OBSERVATION] * 3})
        await client.post(ACT, json={})
        await client.post(SESSIONS, json={"policy": "cartpole"})
        return (await client.get("/metrics")).text

    page = with_client(cartpole(folder), ask)
    for line in (
        'rl_service_actions_total{policy="cartpole",version="1",replica="local"} 3.0',
        'rl_service_errors_total{code="invalid_request",replica="local"} 1.0',
        'rl_service_policy_version{policy="cartpole",replica="local"} 1.0',
        "rl_service_sessions 1",
    ):
        assert f"{line}\n" in page
    assert "rl_service_batch_rows_bucket" in page
    assert "rl_service_request_latency_seconds_count" in page


def test_a_long_pass_keeps_nobody_else_waiting(
    folder: Path, write_test_bundle: WriteTestBundle
) -> None:
    model = LLMPolicyConfig(n_layer=4, n_head=2, n_embd=64, context_length=2)
    write_test_bundle(folder.with_name("words"), model=model)
    sources = [cartpole(folder), NumberedBundles("words", {1: folder.with_name("words")})]

    async def play() -> None:
        app, service, _ = await build_local(*sources)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            episode = {"observations": [OBSERVATION], "actions": [0]}
            batch = {"observations": [OBSERVATION] * 1024, "history": [episode] * 1024}
            long = asyncio.create_task(
                client.post("/v1/policies/words/act", json=batch, timeout=300.0)
            )
            words = await service.policies["words"].stable()
            while words.batcher._worker is None:
                await asyncio.sleep(0.01)
            for _ in range(5):
                words.batcher.last_pass_at = float("-inf")  # its health would be asked for
                assert (await client.get("/healthz")).status_code == 200
                assert (await client.post(ACT, json={"observation": OBSERVATION})).is_success
            assert not long.done()
            assert (await long).status_code == 200

    asyncio.run(play())


def test_openapi_tells_what_each_policy_reads(folder: Path) -> None:
    async def ask(client: httpx.AsyncClient) -> Any:
        return (await client.get("/openapi.json")).json()

    document = with_client(cartpole(folder), ask)
    body = document["paths"][ACT]["post"]["requestBody"]["content"]["application/json"]
    single = body["schema"]["oneOf"][0]["properties"]["observation"]
    assert (single["minItems"], single["maxItems"]) == (4, 4)
    assert len(body["example"]["observation"]) == 4
    assert json.dumps(document)


def test_pages_load_nothing_from_elsewhere(folder: Path) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        for path in ("/", "/docs"):
            page = await client.get(path)
            assert "default-src 'none'" in page.headers["Content-Security-Policy"]
            assert not re.search("(src|href)=.(https?:)?//", page.text)

    with_client(cartpole(folder), ask)


def test_one_request_id_for_all_steps_is_no_repetition(folder: Path) -> None:
    async def ask(client: httpx.AsyncClient) -> list[int]:
        opened = (await client.post(SESSIONS, json={"policy": "cartpole"})).json()
        path, steps = f"{SESSIONS}/{opened['session']}/act", []
        for value in (0.0, 0.0, 1.0):
            body = {"observation": [value] * 4}
            reply = await client.post(path, json=body, headers={"X-Request-ID": "trace-1"})
            steps.append(reply.json()["step"])
        return steps

    assert with_client(cartpole(folder), ask) == [0, 0, 1]  # the second one was sent again


def test_rewards_that_add_up_to_no_number_are_refused(folder: Path) -> None:
    async def ask(client: httpx.AsyncClient) -> list[int]:
        opened = (await client.post(SESSIONS, json={"policy": "cartpole"})).json()
        path = f"{SESSIONS}/{opened['session']}"
        body = {"observation": OBSERVATION, "reward": 1.7e308}
        statuses = [
            (await client.post(f"{path}/act", json=body, headers={"X-Request-ID": name}))
            for name in ("a", "b")
        ]
        closed = (await client.delete(path)).json()
        assert closed["episode_return"] == 1.7e308
        return [reply.status_code for reply in statuses]

    assert with_client(cartpole(folder), ask) == [200, 422]
