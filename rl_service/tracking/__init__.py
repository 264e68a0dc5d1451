"""Where a run's numbers are shown besides its own files."""

from __future__ import annotations

import logging

import ray

from rl_service.config.settings import Settings
from rl_service.runs import Run
from rl_service.tracking.tracker import GuardedTracker, Notify, RunStatus, Tracker

logger = logging.getLogger(__name__)

__all__ = ["Notify", "RunStatus", "Tracker", "build_trackers"]


def build_trackers(run: Run, settings: Settings, notify: Notify = logger.warning) -> list[Tracker]:
    """The trackers that the settings ask for.

    Call it after a resumed run has rewound its progress: its last row tells where curves go on.

    Args:
        run: a run; its folder receives the trackers' files.
        settings: which trackers are on.
        notify: takes lines that the user should see.
    """
    # Each library takes a second to import, and only a run that uses it should wait.
    trackers: list[Tracker] = []
    if settings.tracking.tensorboard:
        from rl_service.tracking.tensorboard import TensorBoardTracker

        trackers.append(GuardedTracker("TensorBoard", lambda: TensorBoardTracker(run), notify))
    if settings.tracking.ray_metrics and ray.is_initialized():
        from rl_service.tracking.ray_metrics import RayMetricsTracker

        trackers.append(GuardedTracker("Ray metrics", lambda: RayMetricsTracker(run), notify))
    if settings.tracking.wandb_project:
        from rl_service.tracking.weights_and_biases import WandbTracker

        project, entity = settings.tracking.wandb_project, settings.tracking.wandb_entity
        trackers.append(
            GuardedTracker(
                "Weights & Biases", lambda: WandbTracker(run, project, entity, notify), notify
            )
        )
    return trackers
