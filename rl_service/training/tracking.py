"""Trackers, which show a run's numbers besides its own files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

import ray

from custom_models.text import one_line
from rl_service.common.metrics import numbers_of
from rl_service.config.load import dump_settings
from rl_service.config.settings import Settings
from rl_service.policies.policy_versions import PolicyVersion
from rl_service.training.run import Run

logger = logging.getLogger(__name__)

RunStatus = Literal["finished", "stopped", "failed"]
Notify = Callable[[str], None]
"""Receives a line for the user."""


class Tracker(Protocol):
    """Shows a run's numbers somewhere; `progress.jsonl` stays the record."""

    def log(self, row: Mapping[str, Any], step: int) -> None:
        """Adds numbers.

        Args:
            row: keys of `rl_service.common.metrics.METRICS`; null and NaN are left out.
            step: env steps sampled so far (`num_env_steps_sampled_lifetime`).
        """

    def log_policy(self, bundle: Path, version: PolicyVersion) -> None:
        """Keeps the best policy if it keeps files; called at most once, after the last numbers."""

    def finish(self, status: RunStatus) -> None:
        """Writes what is buffered and closes; nothing is logged after it."""


class GuardedTracker:
    """Passes everything on until the first failure, reports it, and then does nothing."""

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
        except Exception as error:  # of any library: it may cost the tracking, never the training
            logger.warning("%s failed", self._name, exc_info=True)
            self._notify(f"{self._name} is switched off: {one_line(error)}")
            self._tracker = None


class TensorBoardTracker:
    """Writes a run's numbers for `tensorboard --logdir <run>`."""

    def __init__(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter  # takes a second to import

        rows = run.read_progress()
        # A resumed run repeats the steps after its checkpoint: what was shown of them is hidden.
        purge_step = rows[-1]["num_env_steps_sampled_lifetime"] + 1 if rows else None
        self._writer = SummaryWriter(str(run.path), purge_step=purge_step)
        if not rows:
            self._writer.add_text("settings", f"```yaml\n{dump_settings(run.settings)}\n```")

    def log(self, row: Mapping[str, Any], step: int) -> None:
        """Adds a point to each number's curve."""
        for key, value in numbers_of(row).items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def log_policy(self, bundle: Path, version: PolicyVersion) -> None:
        """Keeps nothing: event files hold numbers."""

    def finish(self, status: RunStatus) -> None:
        """Closes the event file."""
        self._writer.close()


def build_trackers(run: Run, settings: Settings, notify: Notify = logger.warning) -> list[Tracker]:
    """The trackers that the settings ask for.

    Call it after a resumed run has rewound its progress: its last row shows where curves continue.

    Args:
        run: a run; its folder receives the trackers' files.
        settings: which trackers are on.
        notify: receives lines for the user.
    """
    trackers: list[Tracker] = []
    if settings.tracking.tensorboard:
        trackers.append(GuardedTracker("TensorBoard", lambda: TensorBoardTracker(run), notify))
    if settings.tracking.ray_metrics and ray.is_initialized():
        from rl_service.training.ray_metrics import RayMetricsTracker

        trackers.append(GuardedTracker("Ray metrics", lambda: RayMetricsTracker(run), notify))
    if settings.tracking.wandb_project:
        from rl_service.training.weights_and_biases import WandbTracker

        project, entity = settings.tracking.wandb_project, settings.tracking.wandb_entity
        trackers.append(
            GuardedTracker(
                "Weights & Biases", lambda: WandbTracker(run, project, entity, notify), notify
            )
        )
    return trackers
