"""The newest numbers of a run as gauges at the metrics port of Ray's node, for Prometheus."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.util.metrics import Gauge

from rl_service.common.metrics import ENV_STEPS, METRICS, numbers_of
from rl_service.policies.policy_versions import PolicyVersion
from rl_service.training.run import Run
from rl_service.training.tracking import RunStatus

logger = logging.getLogger(__name__)

PREFIX = "rl_service_training_"
"""Prefix of a gauge's name, before the row's key; Ray puts `ray_` before it."""
TAGS = ("experiment", "run", "env", "model", "algorithm")
SHOWN = (
    "training_iteration",
    ENV_STEPS,
    "num_env_runners",
    "num_env_runners_target",
    "worker_hours",
    "num_worker_restarts",
    "num_failed_episodes",
    "sample_time_s",
    "learn_time_s",
    "learn_actor_time_s",
    "iteration_time_s",
    "env_steps_per_s",
    "episode_return_mean",
    "evaluation/episode_return_mean",
)
"""Keys of the row that become gauges."""
_REFRESH_S = 5.0
"""Ray forgets a gauge that was not set for two of its reports, 10 s apart by default; an iteration
may last longer."""


class RayMetricsTracker:
    """Sets gauges, and sets them again while an iteration lasts.

    A run that has ended or was killed disappears from the page half a minute later.
    """

    def __init__(self, run: Run) -> None:
        settings = run.settings
        values = (
            run.path.parent.name,
            run.run_id,
            settings.env.id,
            settings.model.name,
            settings.algorithm.name,
        )
        self._tags = dict(zip(TAGS, values, strict=True))
        self._gauges = {key: build_gauge(key) for key in SHOWN}
        self._newest: dict[str, int | float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._refresh, daemon=True)

    def log(self, row: Mapping[str, Any], step: int) -> None:
        """Shows the row's numbers; gauges of missing keys keep their values."""
        # Another dict, not the same one changed: the thread may be reading it.
        self._newest = self._newest | numbers_of({k: row[k] for k in SHOWN if k in row})
        self._set()
        if self._thread.ident is None:
            self._thread.start()

    def log_policy(self, bundle: Path, version: PolicyVersion) -> None:
        """Keeps nothing: gauges hold numbers."""

    def finish(self, status: RunStatus) -> None:
        """Lets the gauges expire."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _refresh(self) -> None:
        try:
            while not self._ended.wait(_REFRESH_S) and ray.is_initialized():
                self._set()
        except Exception:  # of Ray; the next row may still work
            logger.warning("the metrics of a run are not refreshed any more", exc_info=True)

    def _set(self) -> None:
        for key, value in self._newest.items():
            self._gauges[key].set(value, self._tags)


def build_gauge(key: str) -> Gauge:
    """The gauge of one of `METRICS`."""
    metric = METRICS[key]
    name = PREFIX + key.replace("/", "_")
    return Gauge(name, f"{metric.meaning} ({metric.unit})", TAGS)
