"""A service in this process: the policies and the routes without Ray."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import httpx
from fastapi import FastAPI

from custom_models.configs import MLPConfig
from custom_models.model_config import ModelConfig
from custom_models.nets import build_actor_critic
from custom_models.spaces import ActionSpec
from rl_service.config.settings import EnvSettings
from rl_service.page.library import RunLibrary
from rl_service.page.play import PlayRoom
from rl_service.policies import write_bundle
from rl_service.policies.spaces import observed_part, space_spec
from rl_service.serving.api import Api
from rl_service.serving.inputs import Limits
from rl_service.serving.local import InProcess
from rl_service.serving.page import Page
from rl_service.serving.security import Tokens
from rl_service.serving.service import Service
from rl_service.serving.shared import ServingMetrics, SharedState
from rl_service.serving.sources import PolicySource

Ask = Callable[[httpx.AsyncClient], Awaitable[Any]]


class LocalShared(InProcess):
    """`SharedState` of this process, to be awaited as its actor would be."""

    def __init__(self, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        self.state = SharedState(limits.max_sessions, limits.session_ttl_s)
        super().__init__(self.state)


class NumberedBundles(PolicySource):
    """Bundle folders by version, one of them wanted."""

    def __init__(self, name: str, folders: Mapping[int, Path]) -> None:
        super().__init__(name)
        self.folders = dict(folders)
        self.now = min(self.folders)
        self.given_up: list[int] = []

    def wanted(self) -> int:
        return self.now

    def knows(self, version: int) -> bool:
        return version in self.folders

    def fetch(self, version: int) -> Path:
        return self.folders[version]

    def give_up(self, version: int, serves: int) -> None:
        self.given_up.append(version)


def break_parity(folder: Path) -> None:
    """Makes the recorded outputs of a bundle differ from those of its net."""
    spec = json.loads((folder / "policy.json").read_text())
    spec["parity"]["dist_inputs"][0][0] += 1.0
    (folder / "policy.json").write_text(json.dumps(spec))


async def build_local(
    *sources: PolicySource,
    limits: Limits | None = None,
    tokens: Tokens | None = None,
    canary: float = 0.0,
    runs: Path | None = None,
) -> tuple[FastAPI, Service, LocalShared]:
    """The application with its policies loaded."""
    limits = limits or Limits()
    shared, metrics = LocalShared(limits), ServingMetrics()
    service = Service(sources, limits, shared, metrics, canary)
    await service.start()
    page = Page(service, PlayRoom(), None if runs is None else RunLibrary(runs))
    api = Api(service, page, shared, tokens or Tokens(None, {}), metrics, "local")
    return api.build(), service, shared


def ask(bundle: Path, asking: Ask) -> Any:
    """Serves a bundle as `p` to one client."""

    async def run() -> Any:
        app, _, _ = await build_local(NumberedBundles("p", {1: bundle}))
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await asking(client)

    return asyncio.run(run())


def write_for_spaces(
    path: Path,
    observations: gym.Space[Any],
    actions: gym.Space[Any],
    model: ModelConfig | None = None,
) -> None:
    """The bundle of an untrained net, for spaces that no environment here has."""
    size = observed_part(space_spec(observations)).size
    write_bundle(
        path,
        net=build_actor_critic(
            model or MLPConfig(hidden_sizes=(8,), critic_hidden_sizes=(8,)),
            size,
            ActionSpec.from_space(actions),
        ),
        spaces=(observations, actions),
        env=EnvSettings(id="CartPole-v1"),
        normalizer=None,
        value_scale=(0.0, 1.0),
        evaluation={},
        provenance={},
    )


def as_json(value: Any) -> Any:
    """What an environment gives, as a client sends it."""
    return json.loads(json.dumps(value, default=lambda array: array.tolist()))
