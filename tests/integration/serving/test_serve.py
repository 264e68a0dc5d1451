"""A real service: routes, sessions over the loss of a replica, updates under load, tokens, end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import httpx
import numpy as np
import pytest
import torch

from custom_models.configs import LLMPolicyConfig, MLPConfig
from custom_models.history import RunningHistory
from docs.examples.play_over_http import play
from rl_service.cluster.nodes import command_line
from rl_service.common.errors import BundleError
from rl_service.config.settings import EnvSettings
from rl_service.policies import load_bundle
from rl_service.policies.registry import PolicyRegistry
from rl_service.rollout.envs import make_env
from rl_service.serving.client import AsyncPolicyClient, PolicyServiceError
from rl_service.training.evaluation import evaluate
from tests.conftest import WriteTestBundle
from tests.support.locks import Locks
from tests.support.services import TOKEN, Running, Start, descendants, wait_until

JSON = {"Content-Type": "application/json"}
TAXI = EnvSettings(id="Taxi-v3", max_episode_steps=40)
STACK = MLPConfig(actor_net="stack", actor_context_length=3, history_actions=True)
LANDER = EnvSettings(id="LunarLander-v3", max_episode_steps=40)


@pytest.fixture(scope="module")
def service(start: Start, write_bundle_once: WriteTestBundle) -> Iterator[Running]:
    folder = start.folder
    registry = PolicyRegistry(str(folder / "registry"))
    for version in (1, 2):
        write_bundle_once(folder / f"v{version}", seed=version)
        registry.register(folder / f"v{version}", "cartpole")
    registry.promote("cartpole", 1)
    memory = LLMPolicyConfig(context_length=4, n_layer=1, n_head=2, n_embd=16)
    write_bundle_once(folder / "memory", model=memory)
    write_bundle_once(folder / "lander", "LunarLander-v3", max_episode_steps=40)
    write_bundle_once(folder / "locks", "tests.support.locks:Locks", model=STACK)
    write_bundle_once(folder / "taxi", TAXI.id, max_episode_steps=40, change=prefer_to_pick_up)
    token_file = folder / "tokens"
    token_file.write_text(f"tests: {TOKEN}\n", encoding="utf-8")
    process, url, output = start(
        "cartpole",
        str(folder / "memory"),
        f"moon={folder / 'lander'}",
        *(str(folder / name) for name in ("locks", "taxi")),
        *("--registry", registry.root, "--host", "0.0.0.0"),
        *("--token-file", str(token_file), "--replicas", "2"),
    )
    yield Running(url, process, registry, token_file, output)


def prefer_to_pick_up(net: Any) -> None:
    with torch.no_grad():
        net.actor.head.logits.bias[4] = 10.0


def replicas_in(metrics: str) -> set[str]:
    return set(re.findall('replica="(.*?)"', metrics))


def test_the_printed_curl_answers_with_an_action(service: Running) -> None:
    [line] = re.findall(r"^try: (curl .*)$", service.output.read_text(), re.MULTILINE)
    done = subprocess.run(
        line,
        shell=True,
        env={**os.environ, "TOKEN": TOKEN},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["action"] in (0, 1)


def test_routes_and_errors(service: Running) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "X-Request-ID": "mine"}
    with httpx.Client(base_url=service.url, headers=headers, timeout=30.0) as client:
        for path in ("/", "/docs", "/healthz", "/readyz", "/openapi.json", "/v1/policies"):
            reply = client.get(path)
            assert reply.status_code == 200, path
            assert reply.headers["X-Request-ID"] == "mine"
        wait_until(
            lambda: len(set(re.findall('replica="(.*?)"', client.get("/metrics").text))) == 2
        )
        act = "/v1/policies/cartpole/act"
        assert client.post(act, json={"observation": [0.0] * 4}).json()["version"] == 1
        for reply, status in (
            (client.post(act, json={"observation": [0.0]}), 422),
            (
                client.post(act, content="[" * 5000, headers={"Content-Type": "application/json"}),
                400,
            ),
            (client.post(act, content="{}"), 415),
            (client.get("/v1/policies/none"), 404),
            (client.get("/none"), 404),
            (client.post("/v1/sessions/none/act", json={"observation": [0.0] * 4}), 404),
            (client.get("/v1/policies", headers={"Authorization": "Bearer no"}), 401),
        ):
            assert reply.status_code == status
            assert reply.json()["error"]["request_id"] == "mine"


def test_episodes_over_http_return_what_evaluation_returns(service: Running) -> None:
    async def play(client: AsyncPolicyClient, env: gym.Env[Any, Any], seed: int) -> float:
        total, ended = 0.0, False
        obs, _ = env.reset(seed=seed)
        async with client.session("moon") as session:
            while not ended:
                obs, reward, terminated, truncated, _ = env.step((await session.act(obs)).action)
                total, ended = total + float(reward), terminated or truncated
        return total

    async def play_all() -> list[float]:
        envs = [make_env(LANDER) for _ in range(20)]
        async with AsyncPolicyClient(service.url, TOKEN) as client:
            return list(await asyncio.gather(*(play(client, e, 7 + i) for i, e in enumerate(envs))))

    policy = load_bundle(service.token_file.parent / "lander")
    expected = evaluate(policy, LANDER, num_episodes=20, seed=7)
    assert asyncio.run(play_all()) == expected.returns.tolist()


def test_the_example_plays(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", TOKEN)
    policy = load_bundle(service.token_file.parent / "lander")
    expected = evaluate(policy, LANDER, num_episodes=2, seed=5)
    assert play(service.url, "moon", num_episodes=2, seed=5) == expected.returns.tolist()


def test_the_example_takes_only_actions_that_the_environment_allows(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taxi-v3 observes a number, gives its mask in `info` and fines what it forbids."""
    monkeypatch.setenv("TOKEN", TOKEN)
    policy = load_bundle(service.token_file.parent / "taxi")
    expected = evaluate(policy, TAXI, num_episodes=3, seed=5)
    assert play(service.url, "taxi", num_episodes=3, seed=5) == expected.returns.tolist()
    fined = TAXI.model_copy(update={"action_masks": False})
    assert evaluate(policy, fined, num_episodes=3, seed=5).returns.tolist() == [-400.0] * 3
    assert min(expected.returns) > -400.0


def test_episodes_of_many_spaces_over_http_return_what_evaluation_returns(
    service: Running,
) -> None:
    """The environment gives a Dict with a mask in it, and raises at an illegal action."""
    policy = load_bundle(service.token_file.parent / "locks")
    expected = evaluate(policy, policy.spec.env, num_episodes=2, seed=3)
    env, returns = Locks(), []
    with service.client() as client:
        for seed in (3, 4):
            with client.session("locks") as session:
                obs, _ = env.reset(seed=seed)
                total, ended = 0.0, False
                while not ended:
                    obs, reward, _, ended, _ = env.step(session.act(obs).action)
                    total += reward
                returns.append(total)
        with pytest.raises(PolicyServiceError, match="allows no action; expected 10") as refused:
            client.act("locks", {**obs, "action_mask": np.zeros(10, np.int8)})
        assert refused.value.status == 422
    assert returns == pytest.approx(expected.returns)


def test_sessions_go_on_when_replicas_are_killed(service: Running) -> None:
    policy = load_bundle(service.token_file.parent / "memory")
    history = RunningHistory(1, 4, policy.action_spec)
    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=3)
    with service.client() as client, client.session("memory") as session:
        for step in range(8):
            if step in (3, 5):
                os.kill(service.replica_pids()[0], signal.SIGKILL)
            answered = session.act(obs)
            expected = policy.act(
                obs[None], deterministic=True, history=history.observed(obs[None])
            )
            history.acted(expected.actions)
            assert answered.action == expected.env_actions[0]
            assert np.float32(answered.log_prob) == expected.log_prob[0]
            obs, *_ = env.step(answered.action)
    wait_until(lambda: len(service.replica_pids()) == 2)


def test_promotions_under_load_lose_no_request(service: Running) -> None:
    ended, versions, failures = threading.Event(), Counter[int](), list[str]()

    def ask() -> None:
        body, headers = {"observation": [0.0] * 4}, {"Authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=service.url, headers=headers, timeout=30.0) as client:
            while not ended.is_set():
                reply = client.post("/v1/policies/cartpole/act", json=body)
                if reply.status_code == 200:
                    versions[reply.json()["version"]] += 1
                else:
                    failures.append(reply.text)

    def only(version: int) -> bool:
        """Whether a while passes in which no other version answers."""
        before = versions.copy()
        time.sleep(0.5)
        new = versions - before
        return set(new) == {version}

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: only(1))
        service.registry.promote("cartpole", 2)
        wait_until(lambda: only(2))
        service.registry.rollback("cartpole")
        wait_until(lambda: only(1))
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert failures == []


def test_a_broken_bundle_takes_no_traffic(service: Running, write_bundle_once: Any) -> None:
    folder = service.token_file.parent / "v3"
    write_bundle_once(folder, seed=3)
    version = service.registry.register(folder, "cartpole")
    stored = service.registry.fetch(version) / "policy.json"
    spec = json.loads(stored.read_text())
    spec["parity"]["dist_inputs"][0][0] += 1.0
    stored.chmod(0o644)
    stored.write_text(json.dumps(spec))
    with pytest.raises(BundleError):
        service.registry.promote("cartpole", version.version)
    service.registry.withdraw("cartpole", 1, to=version.version)  # as if it broke after that
    with service.client() as client:
        wait_until(lambda: service.registry.aliases("cartpole")["production"] == 1)
        assert client.act("cartpole", [0.0] * 4).version == 1
        with pytest.raises(PolicyServiceError) as refused:
            client.act(f"cartpole:{version.version}", [0.0] * 4)
        assert refused.value.status == 409


def test_tokens_change_without_a_restart(service: Running) -> None:
    other = "second-token-of-these-tests"

    def works(token: str) -> bool:
        with service.client(token) as client:
            try:
                return bool(client.policies())
            except PolicyServiceError as error:
                assert error.status == 401
                return False

    def all_replicas(token: str, answer: bool) -> bool:
        return {works(token) for _ in range(6)} == {answer}

    service.token_file.write_text(f"tests: {TOKEN}\nother: {other}\n", encoding="utf-8")
    wait_until(lambda: all_replicas(other, True))
    service.token_file.write_text(f"tests: {TOKEN}\n", encoding="utf-8")
    wait_until(lambda: all_replicas(other, False))
    assert works(TOKEN)


def test_other_machines_reach_the_service_and_nothing_else(service: Running) -> None:
    port = service.url.rpartition(":")[2]
    assert httpx.get(f"http://127.0.0.2:{port}/readyz").json()["status"] == "ready"
    pids = descendants(service.process.pid)
    shown = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout
    open_to_all = [
        line.split()[3]
        for line in shown.splitlines()
        if re.search('"(haproxy|ray::Proxy|ray::ServeRepl)', line)
        and int(re.findall(r"pid=(\d+)", line)[0]) in pids
        # Ray's own, which ask for Ray's token.
        and not line.split()[3].startswith(("127.0.0.1:", "*:"))
    ]
    assert open_to_all == [f"0.0.0.0:{port}"]


def test_it_is_not_ready_while_sessions_cannot_be_kept(service: Running) -> None:
    def status() -> int:
        return httpx.get(f"{service.url}/readyz", timeout=30.0).status_code

    [shared] = [
        pid for pid in descendants(service.process.pid) if "ray::SharedState" in command_line(pid)
    ]
    os.kill(shared, signal.SIGKILL)
    wait_until(lambda: status() == 503)
    assert httpx.get(f"{service.url}/healthz", timeout=30.0).status_code == 200
    wait_until(lambda: status() == 200)


def test_bytes_that_are_no_ascii_are_no_fault_of_ours(service: Running) -> None:
    for header in ("X-Request-ID", "Authorization", "x-request-timeout-seconds", "x-session-id"):
        reply = httpx.get(f"{service.url}/v1/policies", headers=[(header.encode(), b"\xff\xfe")])
        assert (reply.status_code, reply.json()["error"]["code"]) == (401, "unauthorized")
        assert reply.headers.get_list("X-Request-ID") == [reply.json()["error"]["request_id"]]


def test_nobody_else_can_read_the_token_of_its_ray(service: Running) -> None:
    folder = service.output.parent / ".ray"
    modes = [path.stat().st_mode & 0o777 for path in (folder, folder / "auth_token")]
    assert modes == [0o700, 0o600]


def test_it_stops_cleanly(service: Running) -> None:
    pids = descendants(service.process.pid)
    [logs] = re.findall(r"^log: (.*)$", service.output.read_text(), re.MULTILINE)
    folder = service.output.parent / logs
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(60) == 0
    wait_until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids))
    assert "raylet" not in service.output.read_text().partition("stopping: ")[2]
    lines = [
        json.loads(line)
        for file in folder.glob("requests-*.jsonl")
        for line in file.read_text().splitlines()
    ]
    assert any(line.get("request_id") == "mine" for line in lines)
