"""Ray for tests in this process: its own temporary folder, two CPUs, gone at the end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator

import pytest
import ray


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    folder = tempfile.mkdtemp(prefix="rlt")  # short: Ray's sockets live below it
    ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, _temp_dir=folder, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
