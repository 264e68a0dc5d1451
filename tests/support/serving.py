"""A service in this process: the policies and the routes without Ray."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from fastapi import FastAPI

from rl_service.page.library import RunLibrary
from rl_service.page.play import PlayRoom
from rl_service.serving.api import Api
from rl_service.serving.inputs import Limits
from rl_service.serving.local import InProcess
from rl_service.serving.page import Page
from rl_service.serving.security import Tokens
from rl_service.serving.service import Service
from rl_service.serving.shared import ServingMetrics, SharedState
from rl_service.serving.sources import PolicySource


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
