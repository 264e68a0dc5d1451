"""Ray for tests in this process: its own temporary folder, two CPUs, gone at the end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
import ray

from rl_service.algorithms.base import OnPolicyAlgorithm
from rl_service.algorithms.registry import build_algorithm
from rl_service.config.settings import Settings


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    folder = tempfile.mkdtemp(prefix="rlt")  # short: Ray's sockets live below it
    ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, _temp_dir=folder, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


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
