"""What a tracker is, and one that may fail."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

from rl_service.config.text import one_line
from rl_service.policies.registry import PolicyVersion

RunStatus = Literal["finished", "stopped", "failed"]
Notify = Callable[[str], None]
"""Takes a line that the user should see."""
logger = logging.getLogger(__name__)


class Tracker(Protocol):
    """Shows a run's numbers somewhere; `progress.jsonl` stays the record."""

    def log(self, row: Mapping[str, Any], step: int) -> None:
        """Adds numbers.

        Args:
            row: keys of `rl_service.metrics.METRICS`; null and NaN are left out.
            step: env steps sampled so far (`num_env_steps_sampled_lifetime`).
        """

    def log_policy(self, bundle: Path, version: PolicyVersion) -> None:
        """Keeps the run's best policy, if it keeps files; at most once, after the last numbers."""

    def finish(self, status: RunStatus) -> None:
        """Writes what is buffered and lets go; nothing is logged after it."""


class GuardedTracker:
    """Passes everything on until the first failure, which it reports; then nothing more."""

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
