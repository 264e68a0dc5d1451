"""A tracker that may fail without ending the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rl_service.config.text import one_line
from rl_service.policies.registry import PolicyVersion
from rl_service.tracking.tracker import Notify, RunStatus, Tracker

logger = logging.getLogger(__name__)


class GuardedTracker:
    """Passes everything on until the first failure, which it tells; then nothing more."""

    def __init__(self, name: str, build: Callable[[], Tracker], notify: Notify) -> None:
        self._name = name
        self._notify = notify
        self._tracker: Tracker | None = None
        with self._guarded():
            self._tracker = build()

    def log(self, row: Mapping[str, Any], step: int) -> None:
        """Adds numbers."""
        with self._guarded():
            if self._tracker is not None:
                self._tracker.log(row, step)

    def log_policy(self, bundle: Path, version: PolicyVersion) -> None:
        """Keeps the best policy."""
        with self._guarded():
            if self._tracker is not None:
                self._tracker.log_policy(bundle, version)

    def finish(self, status: RunStatus) -> None:
        """Lets go."""
        with self._guarded():
            if self._tracker is not None:
                self._tracker.finish(status)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of any library: it costs the tracking, never the training
            logger.warning("%s failed", self._name, exc_info=True)
            self._notify(f"{self._name} is off from here on: {one_line(error)}")
            self._tracker = None
