"""Versions take over only after their checks; old ones stay until then, and may come back."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_service.common.errors import BundleError
from rl_service.serving import rollouts
from rl_service.serving.engine import Engine
from rl_service.serving.errors import RequestError
from rl_service.serving.limits import Limits
from rl_service.serving.service import Service
from tests.conftest import WriteTestBundle
from tests.support.serving import Versions, break_parity, build_local


@pytest.fixture
def versions(tmp_path: Path, write_test_bundle: WriteTestBundle) -> Versions:
    for number in (1, 2, 3):
        write_test_bundle(tmp_path / str(number), seed=number)
    return Versions("cartpole", {number: tmp_path / str(number) for number in (1, 2, 3)})


async def serves(engine: Engine) -> int:
    return (await engine.stable("cartpole")).version


def test_a_wanted_version_takes_over_and_a_rollback_goes_back(versions: Versions) -> None:
    async def play() -> None:
        _, engine, shared = await build_local(versions)
        assert await serves(engine) == 1
        versions.now = 2
        await engine.rollouts.watch_once()
        assert await serves(engine) == 2
        versions.now = 1
        await engine.rollouts.watch_once()
        assert await serves(engine) == 1
        assert shared.state.rollout("cartpole").stable == 1

    asyncio.run(play())


def test_a_version_that_fails_its_parity_check_never_serves(versions: Versions) -> None:
    break_parity(versions.folders[2])

    async def play() -> None:
        _, engine, shared = await build_local(versions)
        versions.now = 2
        for _ in range(2):
            await engine.rollouts.watch_once()
            assert await serves(engine) == 1
        assert versions.given_up == [2]
        assert shared.state.rollout("cartpole").rejected == (2,)
        with pytest.raises(RequestError) as refused:
            await engine.pinned("cartpole", 2)
        assert refused.value.status == 409

    asyncio.run(play())


def test_a_version_with_other_spaces_never_serves(
    versions: Versions, tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "lander", "LunarLander-v3")
    versions.folders[4] = tmp_path / "lander"

    async def play() -> None:
        _, engine, _ = await build_local(versions)
        versions.now = 4
        await engine.rollouts.watch_once()
        assert await serves(engine) == 1

    asyncio.run(play())


def test_a_version_promoted_again_is_tried_again(versions: Versions) -> None:
    good = (versions.folders[2] / "policy.json").read_text()
    break_parity(versions.folders[2])

    async def play() -> None:
        _, engine, _ = await build_local(versions)
        for now in (2, 1):
            versions.now = now
            await engine.rollouts.watch_once()
        (versions.folders[2] / "policy.json").write_text(good)
        versions.now = 2
        await engine.rollouts.watch_once()
        assert await serves(engine) == 2

    asyncio.run(play())


def test_a_registry_that_is_away_changes_nothing(
    versions: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        _, engine, _ = await build_local(versions)

        def away() -> int:
            raise OSError("no route to host")

        monkeypatch.setattr(versions, "wanted", away)
        await engine.rollouts.watch_once()
        assert await serves(engine) == 1

    asyncio.run(play())


def test_a_new_replica_begins_with_what_the_others_serve(versions: Versions) -> None:
    async def play() -> None:
        _, engine, shared = await build_local(versions)
        break_parity(versions.folders[2])
        versions.now = 2
        await engine.rollouts.watch_once()
        second = Engine([versions], Limits(), shared, engine._metrics)
        await second.rollouts.start()  # would fail with version 2
        assert await serves(second) == 1

    asyncio.run(play())


def test_nothing_starts_with_a_broken_bundle(versions: Versions) -> None:
    break_parity(versions.folders[1])
    with pytest.raises(BundleError, match="parity"):
        asyncio.run(build_local(versions))


def test_the_least_recently_used_version_is_unloaded(versions: Versions) -> None:
    async def play() -> None:
        _, engine, _ = await build_local(versions, limits=Limits(max_loaded_policies=2))
        first = await engine.stable("cartpole")
        await engine.pinned("cartpole", 2)
        assert await engine.stable("cartpole") is first
        await engine.pinned("cartpole", 3)
        assert await engine.stable("cartpole") is first
        assert engine.loader.in_memory == [("cartpole", 3), ("cartpole", 1)]

    asyncio.run(play())


def test_a_canary_takes_its_share_and_then_all(
    versions: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts, "MIN_SECONDS", 0.0)

    async def play() -> None:
        _, engine, _ = await build_local(versions, canary=0.25)
        versions.now = 2
        await engine.rollouts.watch_once()
        seen = [await ask(engine) for _ in range(100)]
        assert seen.count(2) == 25
        for _ in range(400):
            await ask(engine)
        assert await serves(engine) == 2

    asyncio.run(play())


def test_a_canary_that_fails_is_withdrawn_and_no_request_with_it(versions: Versions) -> None:
    async def play() -> None:
        _, engine, _ = await build_local(versions, canary=0.5)
        versions.now = 2
        await engine.rollouts.watch_once()
        await answer_with_nan(engine, 2)
        assert [await ask(engine) for _ in range(10)] == [1] * 10
        assert versions.given_up == [2]
        await engine.rollouts.watch_once()
        assert [await ask(engine) for _ in range(10)] == [1] * 10

    asyncio.run(play())


async def answer_with_nan(engine: Engine, version: int) -> None:
    loaded = await engine.load("cartpole", version)
    with torch.no_grad():
        for weight in loaded.policy.actor.parameters():
            weight.fill_(torch.nan)


async def ask(engine: Engine) -> int:
    chosen = await engine.chosen("cartpole")
    obs = np.zeros((1, 4), np.float32)
    answered, _ = await engine.act(chosen, obs, deterministic=True, remember=lambda asked: None)
    return answered.version


def test_a_version_that_fails_elsewhere_is_left_here(versions: Versions) -> None:
    """Its trial passed in this replica, and not in another one."""

    async def play() -> None:
        _, engine, shared = await build_local(versions)
        versions.now = 2
        await engine.rollouts.watch_once()
        assert await serves(engine) == 2
        shared.state.reject("cartpole", 2)
        assert shared.state.rollout("cartpole").stable is None  # none begins with it, either
        for _ in range(2):
            await engine.rollouts.watch_once()
            assert await serves(engine) == 1

    asyncio.run(play())


def test_an_observation_that_nobody_can_answer_is_no_fault_of_a_canary(
    versions: Versions,
) -> None:
    obs = np.full((1, 4), 3e38, np.float32)

    async def play() -> None:
        _, engine, _ = await build_local(versions, canary=0.5)
        versions.now = 2
        await engine.rollouts.watch_once()
        for version in (1, 2):
            loaded = await engine.load("cartpole", version)
            actor: Any = loaded.policy.actor
            actor.body = Overflow()
        for _ in range(4):
            loaded = await engine.chosen("cartpole")
            with pytest.raises(RequestError) as refused:
                await engine.act(loaded, obs, deterministic=True, remember=lambda _: None)
            assert (refused.value.status, refused.value.code) == (422, "invalid_observation")
        assert versions.given_up == []

    asyncio.run(play())


class Overflow(torch.nn.Module):
    """What float32 makes of an observation that is too large."""

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs.new_full((len(obs), 64), torch.inf)


def test_a_version_that_takes_traffic_stays_loaded(versions: Versions) -> None:
    async def play() -> None:
        limits = Limits(max_loaded_policies=2)
        _, engine, _ = await build_local(versions, limits=limits)
        for version in (2, 3, 2, 3):
            await engine.pinned("cartpole", version)
        assert ("cartpole", 1) in engine.loader.in_memory
        assert len(engine.loader.in_memory) == 2

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


def test_a_slow_canary_that_takes_all_requests_is_withdrawn(versions: Versions) -> None:
    async def play() -> None:
        _, engine, _ = await build_local(versions, canary=1.0)
        for _ in range(rollouts.MIN_COMPARED):
            assert await ask(engine) == 1
        versions.now = 2
        await engine.rollouts.watch_once()
        actor: Any = (await engine.load("cartpole", 2)).policy.actor
        actor.body = Slow(actor.body)
        count = rollouts.MIN_COMPARED
        assert [await ask(engine) for _ in range(count)] == [2] * count
        assert versions.given_up == [2]
        assert await ask(engine) == 1

    asyncio.run(play())


async def trial(versions: Versions) -> tuple[Service, Engine]:
    """A service in which version 2 is to be tried on every request."""
    _, engine, shared = await build_local(versions, canary=1.0)
    versions.now = 2
    await engine.rollouts.watch_once()
    return Service(engine, shared, Limits()), engine


BODY = json.dumps({"observation": [0.0] * 4}).encode()


async def act(service: Service, reference: str) -> int:
    return int((await service.act(reference, BODY))["version"])


async def play_session(service: Service, reference: str, num_steps: int) -> set[int]:
    """Versions that have answered."""
    opened = await service.open_session(json.dumps({"policy": reference}).encode())
    steps = [
        await service.session_act(opened["session"], BODY, f"r{step}") for step in range(num_steps)
    ]
    return {step["version"] for step in steps}


def test_requests_that_pin_a_version_count_in_no_trial(
    versions: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts, "MIN_SECONDS", 0.0)

    async def play() -> None:
        service, engine = await trial(versions)
        for _ in range(rollouts.MIN_REQUESTS):
            assert await act(service, "cartpole:2") == 2
            assert await act(service, "cartpole:3") == 3
        assert await play_session(service, "cartpole:2", rollouts.MIN_REQUESTS) == {2}
        assert await serves(engine) == 1
        for _ in range(rollouts.MIN_REQUESTS - 1):
            assert await act(service, "cartpole") == 2
        assert await serves(engine) == 1
        assert await act(service, "cartpole") == 2
        assert await serves(engine) == 2

    asyncio.run(play())


def test_a_pinned_version_that_fails_is_answered_by_no_other(versions: Versions) -> None:
    async def play() -> None:
        service, engine = await trial(versions)
        await answer_with_nan(engine, 2)
        for attempt in (act(service, "cartpole:2"), play_session(service, "cartpole:2", 1)):
            with pytest.raises(RequestError) as refused:
                await attempt
            assert refused.value.status == 422
        assert versions.given_up == []  # the trial goes on
        assert await act(service, "cartpole") == 1
        assert versions.given_up == [2]

    asyncio.run(play())


def test_a_session_goes_on_with_another_version_only_if_it_pinned_none(versions: Versions) -> None:
    async def play() -> None:
        service, engine = await trial(versions)
        opened = [
            await service.open_session(json.dumps({"policy": name}).encode())
            for name in ("cartpole", "cartpole:2")
        ]
        await answer_with_nan(engine, 2)
        free = await service.session_act(opened[0]["session"], BODY, "r")
        assert (opened[0]["version"], free["version"]) == (2, 1)
        with pytest.raises(RequestError, match="no finite answer"):
            await service.session_act(opened[1]["session"], BODY, "r")

    asyncio.run(play())
