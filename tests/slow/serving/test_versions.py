"""A real service that changes: trials that pass and fail, a replaced folder, a second replica."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import torch

from custom_models.nets import ActorCritic
from rl_service.policies.registry import PolicyRegistry
from rl_service.serving.client import PolicyClient
from tests.conftest import WriteTestBundle
from tests.support.services import Running, Start, wait_until

JSON = {"Content-Type": "application/json"}
FAR_AWAY = [1e6, 0.0, 0.0, 0.0]
"""An observation that `overflowing` has no finite answer to."""


def overflowing(net: ActorCritic) -> None:
    """Answers that are finite where the bundle is checked, and too large for float32 far away."""
    weights = dict(net.actor.named_parameters())
    with torch.no_grad():
        for name, value in weights.items():
            value.zero_()
            if name == "body.0.weight":
                value[:, 0] = 1e-4
            elif name == "body.2.weight":
                value.copy_(torch.eye(len(value)))
            elif name == "head.logits.weight":
                value.fill_(1e37)


@pytest.fixture(scope="module")
def service(start: Start, write_bundle_once: WriteTestBundle) -> Iterator[Running]:
    """`cartpole` of a registry, whose versions 1 and 2 are sound and 3 is not, and a folder."""
    folder = start.folder
    registry = PolicyRegistry(str(folder / "registry"))
    for version in (1, 2):
        write_bundle_once(folder / f"v{version}", seed=version)
    write_bundle_once(folder / "v3", change=overflowing)
    for version in (1, 2, 3):
        registry.register(folder / f"v{version}", "cartpole")
    registry.promote("cartpole", 1)
    shutil.copytree(folder / "v1", folder / "served")
    process, url, output = start(
        "cartpole",
        str(folder / "served"),
        *("--registry", registry.root, "--replicas", "1:2", "--canary", "50%"),
    )
    yield Running(url, process, registry, folder / "none", output)


@pytest.fixture
def client(service: Running) -> Iterator[PolicyClient]:
    with PolicyClient(service.url, patience_s=60.0) as client:
        yield client


def ask(client: PolicyClient, policy: str, observation: list[float], count: int) -> Counter[int]:
    """How often each version has answered."""
    return Counter(client.act(policy, observation).version for _ in range(count))


def rejected(client: PolicyClient, reason: str) -> bool:
    page = client._http.get("/metrics").text
    return bool(re.search(rf'rejected_versions_total{{.*reason="{reason}".*}} [1-9]', page))


def wait_for_trial(client: PolicyClient, policy: str, stable: int) -> None:
    wait_until(lambda: set(ask(client, policy, [0.0] * 4, 4)) != {stable})


def test_a_sound_version_takes_half_of_the_requests_and_then_all(
    service: Running, client: PolicyClient
) -> None:
    assert ask(client, "cartpole", FAR_AWAY, 10) == {1: 10}
    service.registry.promote("cartpole", 2)
    wait_for_trial(client, "cartpole", 1)
    assert ask(client, "cartpole", FAR_AWAY, 100) == {1: 50, 2: 50}
    wait_until(lambda: ask(client, "cartpole", FAR_AWAY, 50) == {2: 50})
    assert service.registry.aliases("cartpole")["production"] == 2


def test_a_version_that_fails_on_trial_is_withdrawn_and_no_request_with_it(
    service: Running, client: PolicyClient
) -> None:
    serves = service.registry.aliases("cartpole")["production"]
    service.registry.promote("cartpole", 3)
    wait_for_trial(client, "cartpole", serves)  # it passes its checks, and answers these
    assert ask(client, "cartpole", FAR_AWAY, 10) == {serves: 10}
    wait_until(lambda: service.registry.aliases("cartpole")["production"] == serves)
    assert rejected(client, "errors")
    assert ask(client, "cartpole", [0.0] * 4, 10) == {serves: 10}


def test_a_replaced_folder_is_another_version(service: Running, client: PolicyClient) -> None:
    before = client.act("served", [0.0] * 4).version
    served = service.output.parent / "served"
    replaced_by(served.with_name("v2"), served)
    wait_for_trial(client, "served", before)
    wait_until(lambda: before not in ask(client, "served", [0.0] * 4, 50))
    [after] = ask(client, "served", [0.0] * 4, 10)
    assert client.act(f"served:{before}", [0.0] * 4).version == before
    assert client.act(f"served:{after}", [0.0] * 4).version == after


def replaced_by(new: Path, folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(new, folder.with_name("next"))
    folder.with_name("next").rename(folder)


def test_a_second_replica_comes_under_load_and_answers(
    service: Running, client: PolicyClient
) -> None:
    assert len(service.replica_pids()) == 1

    async def load() -> None:
        has_come = asyncio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            """A body that keeps a replica waiting and the machine idle: the next one may start."""
            # HAProxy waits for the first 16 KB, the replica for the rest.
            yield b" " * 20_000 + b'{"observation": '
            for _ in range(20):
                if not has_come.is_set():
                    await asyncio.sleep(0.5)
                    yield b" "
            yield b"[0.0, 0.0, 0.0, 0.0]}"

        async with httpx.AsyncClient(base_url=service.url, timeout=60.0) as many:

            async def one() -> None:
                while not has_come.is_set():
                    act = "/v1/policies/cartpole/act"
                    reply = await many.post(act, content=slowly(), headers=JSON)
                    assert reply.status_code == 200, reply.text

            async def look() -> None:
                while len(await asyncio.to_thread(service.replica_pids)) < 2:
                    await asyncio.sleep(0.5)
                has_come.set()

            await asyncio.gather(look(), *(one() for _ in range(32)))

    def both_have_acted() -> bool:
        ask(client, "cartpole", [0.0] * 4, 10)
        return len(acting(client._http.get("/metrics").text)) == 2

    asyncio.run(asyncio.wait_for(load(), 120.0))
    wait_until(both_have_acted)


def acting(page: str) -> set[str]:
    """Replicas that have given actions."""
    return set(re.findall(r'rl_service_actions_total{.*replica="(.*?)".*} [1-9]', page))
