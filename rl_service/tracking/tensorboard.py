"""TensorBoard events beside the run's other files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from rl_service.config import dump_settings
from rl_service.metrics import numbers_of
from rl_service.policies.registry import PolicyVersion
from rl_service.runs import Run
from rl_service.tracking.tracker import RunStatus


class TensorBoardTracker:
    """Writes a run's numbers for `tensorboard --logdir <run>`."""

    def __init__(self, run: Run) -> None:
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
