"""What a tracker is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from rl_service.policies.registry import PolicyVersion

RunStatus = Literal["finished", "stopped", "failed"]
Notify = Callable[[str], None]
"""Takes a line that the user should see."""


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
