"""Ray and algorithms for tests in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rl_service.algorithms.base import OnPolicyAlgorithm
from rl_service.algorithms.registry import build_algorithm
from rl_service.config.settings import Settings
from tests.small_runs import own_ray


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    with own_ray():
        yield


@pytest.fixture
def build() -> Iterator[Any]:
    """Builds algorithms that are stopped at the end of the test."""
    built: list[OnPolicyAlgorithm] = []

    def one(settings: Settings) -> OnPolicyAlgorithm:
        built.append(build_algorithm(settings))
        return built[-1]

    yield one
    for algorithm in built:
        algorithm.stop()
