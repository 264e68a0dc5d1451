"""Ray for the length of a run: the cluster that is there, or a local one of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from rl_service.config.settings import ResourceSettings


@contextmanager
def ray_session(resources: ResourceSettings) -> Iterator[None]:
    """Connects to the cluster in `RAY_ADDRESS`, or starts Ray in this machine's processes.

    A Ray that is already connected (a Tune trial, a job, a test) is used and left alone.
    """
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray starts workers at niceness 15: beside any other busy process they would starve, and the
    # learner waits for the slowest of them.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Ray's own warning about zero GPUs changes nothing here and would fill the log.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if os.environ.get("RAY_ADDRESS"):
        ray.init()
    else:
        ray.init(num_gpus=resources.num_gpus, include_dashboard=False)
    try:
        yield
    finally:
        ray.shutdown()
