"""Versions take over only after their checks; old ones stay until then, and may come back."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_service.common.errors import BundleError, RegistryError
from rl_service.serving import canary
from rl_service.serving.inputs import Limits
from rl_service.serving.refusals import RequestError
from rl_service.serving.service import Service
from rl_service.serving.shared import ServingMetrics
from tests.conftest import WriteTestBundle
from tests.support.serving import NumberedBundles, break_parity, build_local, write_for_spaces


@pytest.fixture
def bundles(tmp_path: Path, write_test_bundle: WriteTestBundle) -> NumberedBundles:
    for number in (1, 2, 3):
        write_test_bundle(tmp_path / str(number), seed=number)
    return NumberedBundles("cartpole", {number: tmp_path / str(number) for number in (1, 2, 3)})


async def serves(service: Service) -> int:
    return (await service.policies["cartpole"].stable()).version


def test_a_wanted_version_takes_over_and_a_rollback_goes_back(bundles: NumberedBundles) -> None:
    async def play() -> None:
        _, service, shared = await build_local(bundles)
        assert await serves(service) == 1
        bundles.now = 2
        await service.watch_once()
        assert await serves(service) == 2
        bundles.now = 1
        await service.watch_once()
        assert await serves(service) == 1
        assert shared.state.known_versions("cartpole").stable == 1

    asyncio.run(play())


def test_a_version_that_fails_its_parity_check_never_serves(bundles: NumberedBundles) -> None:
    break_parity(bundles.folders[2])

    async def play() -> None:
        _, service, shared = await build_local(bundles)
        bundles.now = 2
        for _ in range(2):
            await service.watch_once()
            assert await serves(service) == 1
        assert bundles.given_up == [2]
        assert shared.state.known_versions("cartpole").rejected == (2,)
        with pytest.raises(RequestError) as refused:
            await service.policies["cartpole"].pinned(2)
        assert refused.value.status == 409

    asyncio.run(play())


def test_a_version_with_other_spaces_never_serves(
    bundles: NumberedBundles, tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "4", "LunarLander-v3")
    write_for_spaces(tmp_path / "5", gym.spaces.Discrete(4), gym.spaces.Discrete(2))
    write_for_spaces(tmp_path / "6", gym.spaces.Box(-1.0, 1.0, (4,)), gym.spaces.MultiBinary(1))
    write_for_spaces(tmp_path / "7", gym.spaces.Box(-1.0, 1.0, (4,)), gym.spaces.Discrete(2))
    bundles.folders |= {number: tmp_path / str(number) for number in (4, 5, 6, 7)}

    async def play() -> None:
        _, service, _ = await build_local(bundles)
        for number in (4, 5, 6):
            bundles.now = number
            await service.watch_once()
            assert await serves(service) == 1
        bundles.now = 7  # with other bounds
        await service.watch_once()
        assert await serves(service) == 7

    asyncio.run(play())


def test_a_version_promoted_again_is_tried_again(bundles: NumberedBundles) -> None:
    good = (bundles.folders[2] / "policy.json").read_text()
    break_parity(bundles.folders[2])

    async def play() -> None:
        _, service, _ = await build_local(bundles)
        for now in (2, 1):
            bundles.now = now
            await service.watch_once()
        (bundles.folders[2] / "policy.json").write_text(good)
        bundles.now = 2
        await service.watch_once()
        assert await serves(service) == 2

    asyncio.run(play())


def test_a_registry_that_is_away_changes_nothing(
    bundles: NumberedBundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        _, service, _ = await build_local(bundles)

        def away() -> int:
            raise OSError("no route to host")

        monkeypatch.setattr(bundles, "wanted", away)
        await service.watch_once()
        assert await serves(service) == 1

    asyncio.run(play())


@pytest.mark.parametrize("kind", ["registry", "file system"])
def test_a_version_that_cannot_be_read_now_is_asked_for_again(
    bundles: NumberedBundles, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        service = (await build_local(bundles))[1]
        policy = service.policies["cartpole"]

        def away(version: int) -> Path:
            raise RegistryError("no route to host")

        weights = bundles.folders[2] / "policy.safetensors"
        with monkeypatch.context() as patch:
            if kind == "registry":
                patch.setattr(bundles, "fetch", away)
            else:
                weights.rename(weights.with_name("away"))
            with pytest.raises(RequestError) as refused:
                await policy.pinned(2)
            assert (refused.value.status, refused.value.retry_after_s) == (503, 2)
            bundles.now = 2
            await service.watch_once()
            assert await serves(service) == 1
        if kind == "file system":
            weights.with_name("away").rename(weights)
        assert bundles.given_up == []
        await service.watch_once()
        assert await serves(service) == 2

    asyncio.run(play())


def test_a_new_replica_begins_with_what_the_others_serve(bundles: NumberedBundles) -> None:
    async def play() -> None:
        _, service, shared = await build_local(bundles)
        break_parity(bundles.folders[2])
        bundles.now = 2
        await service.watch_once()
        second = Service([bundles], Limits(), shared, ServingMetrics())
        await second.start()  # would fail with version 2
        assert await serves(second) == 1

    asyncio.run(play())


def test_nothing_starts_with_a_broken_bundle(bundles: NumberedBundles) -> None:
    break_parity(bundles.folders[1])
    with pytest.raises(BundleError, match="parity"):
        asyncio.run(build_local(bundles))


def test_the_least_recently_used_version_is_unloaded(bundles: NumberedBundles) -> None:
    async def play() -> None:
        _, service, _ = await build_local(bundles, limits=Limits(max_loaded_policies=2))
        first = await service.policies["cartpole"].stable()
        await service.policies["cartpole"].pinned(2)
        assert await service.policies["cartpole"].stable() is first
        await service.policies["cartpole"].pinned(3)
        assert await service.policies["cartpole"].stable() is first
        assert service.loader.in_memory == [("cartpole", 3), ("cartpole", 1)]

    asyncio.run(play())


def test_a_canary_takes_its_share_and_then_all(
    bundles: NumberedBundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary, "MIN_SECONDS", 0.0)

    async def play() -> None:
        _, service, _ = await build_local(bundles, canary=0.25)
        bundles.now = 2
        await service.watch_once()
        seen = [await ask(service) for _ in range(100)]
        assert seen.count(2) == 25
        for _ in range(400):
            await ask(service)
        assert await serves(service) == 2

    asyncio.run(play())


def test_a_canary_that_fails_is_withdrawn_and_no_request_with_it(bundles: NumberedBundles) -> None:
    async def play() -> None:
        _, service, _ = await build_local(bundles, canary=0.5)
        bundles.now = 2
        await service.watch_once()
        await answer_with_nan(service, 2)
        assert [await ask(service) for _ in range(10)] == [1] * 10
        assert bundles.given_up == [2]
        await service.watch_once()
        assert [await ask(service) for _ in range(10)] == [1] * 10

    asyncio.run(play())


async def answer_with_nan(service: Service, version: int) -> None:
    loaded = await service.policies["cartpole"].load(version)
    with torch.no_grad():
        for weight in loaded.policy.actor.parameters():
            weight.fill_(torch.nan)


async def ask(service: Service) -> int:
    chosen = await service.policies["cartpole"].chosen()
    obs = np.zeros((1, 4), np.float32)
    answered, _ = await service.policies["cartpole"].act(
        chosen, obs, deterministic=True, recall=lambda _: None
    )
    return answered.version


def test_a_version_that_fails_elsewhere_is_left_here(bundles: NumberedBundles) -> None:
    """Its trial passed in this replica, and not in another one."""

    async def play() -> None:
        _, service, shared = await build_local(bundles)
        bundles.now = 2
        await service.watch_once()
        assert await serves(service) == 2
        shared.state.reject("cartpole", 2)
        assert shared.state.known_versions("cartpole").stable is None  # none begins with it, either
        for _ in range(2):
            await service.watch_once()
            assert await serves(service) == 1

    asyncio.run(play())


def test_an_observation_that_nobody_can_answer_is_no_fault_of_a_canary(
    bundles: NumberedBundles,
) -> None:
    obs = np.full((1, 4), 3e38, np.float32)

    async def play() -> None:
        _, service, _ = await build_local(bundles, canary=0.5)
        bundles.now = 2
        await service.watch_once()
        for version in (1, 2):
            loaded = await service.policies["cartpole"].load(version)
            actor: Any = loaded.policy.actor
            actor.body = Overflow()
        for _ in range(4):
            loaded = await service.policies["cartpole"].chosen()
            with pytest.raises(RequestError) as refused:
                await service.policies["cartpole"].act(
                    loaded, obs, deterministic=True, recall=lambda _: None
                )
            assert (refused.value.status, refused.value.code) == (422, "invalid_observation")
        assert bundles.given_up == []

    asyncio.run(play())


class Overflow(torch.nn.Module):
    """What float32 makes of an observation that is too large."""

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs.new_full((len(obs), 64), torch.inf)


def test_a_version_that_takes_traffic_stays_loaded(bundles: NumberedBundles) -> None:
    async def play() -> None:
        limits = Limits(max_loaded_policies=2)
        _, service, _ = await build_local(bundles, limits=limits)
        for version in (2, 3, 2, 3):
            await service.policies["cartpole"].pinned(version)
        assert ("cartpole", 1) in service.loader.in_memory
        assert len(service.loader.in_memory) == 2

    asyncio.run(play())


class Slow(torch.nn.Module):
    """A net that takes its time."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        time.sleep(0.05)
        out: torch.Tensor = self.inner(obs)
        return out


def test_a_slow_canary_that_takes_all_requests_is_withdrawn(bundles: NumberedBundles) -> None:
    async def play() -> None:
        _, service, _ = await build_local(bundles, canary=1.0)
        for _ in range(canary.MIN_COMPARED):
            assert await ask(service) == 1
        bundles.now = 2
        await service.watch_once()
        actor: Any = (await service.policies["cartpole"].load(2)).policy.actor
        actor.body = Slow(actor.body)
        count = canary.MIN_COMPARED
        assert [await ask(service) for _ in range(count)] == [2] * count
        assert bundles.given_up == [2]
        assert await ask(service) == 1

    asyncio.run(play())


async def trial(bundles: NumberedBundles) -> Service:
    """A service in which version 2 is to be tried on every request."""
    _, service, _ = await build_local(bundles, canary=1.0)
    bundles.now = 2
    await service.watch_once()
    return service


BODY = json.dumps({"observation": [0.0] * 4}).encode()


async def act(service: Service, reference: str) -> int:
    return int((await service.act(reference, BODY))["version"])


async def play_session(service: Service, reference: str, num_steps: int) -> set[int]:
    """NumberedBundles that have answered."""
    opened = await service.sessions.open(json.dumps({"policy": reference}).encode())
    steps = [
        await service.sessions.act(opened["session"], BODY, f"r{step}") for step in range(num_steps)
    ]
    return {step["version"] for step in steps}


def test_requests_that_pin_a_version_count_in_no_trial(
    bundles: NumberedBundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary, "MIN_SECONDS", 0.0)

    async def play() -> None:
        service = await trial(bundles)
        for _ in range(canary.MIN_REQUESTS):
            assert await act(service, "cartpole:2") == 2
            assert await act(service, "cartpole:3") == 3
        assert await play_session(service, "cartpole:2", canary.MIN_REQUESTS) == {2}
        assert await serves(service) == 1
        for _ in range(canary.MIN_REQUESTS - 1):
            assert await act(service, "cartpole") == 2
        assert await serves(service) == 1
        assert await act(service, "cartpole") == 2
        assert await serves(service) == 2

    asyncio.run(play())


def test_a_pinned_version_that_fails_is_answered_by_no_other(bundles: NumberedBundles) -> None:
    async def play() -> None:
        service = await trial(bundles)
        await answer_with_nan(service, 2)
        for attempt in (act(service, "cartpole:2"), play_session(service, "cartpole:2", 1)):
            with pytest.raises(RequestError) as refused:
                await attempt
            assert refused.value.status == 422
        assert bundles.given_up == []  # the trial goes on
        assert await act(service, "cartpole") == 1
        assert bundles.given_up == [2]

    asyncio.run(play())


def test_a_session_goes_on_with_another_version_only_if_it_pinned_none(
    bundles: NumberedBundles,
) -> None:
    async def play() -> None:
        service = await trial(bundles)
        opened = [
            await service.sessions.open(json.dumps({"policy": name}).encode())
            for name in ("cartpole", "cartpole:2")
        ]
        await answer_with_nan(service, 2)
        free = await service.sessions.act(opened[0]["session"], BODY, "r")
        assert (opened[0]["version"], free["version"]) == (2, 1)
        with pytest.raises(RequestError, match="no finite answer"):
            await service.sessions.act(opened[1]["session"], BODY, "r")

    asyncio.run(play())
