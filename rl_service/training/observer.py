"""What a training run reports while it runs, and what it returns at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from rl_service.config.settings import Settings


@dataclass(frozen=True)
class TrainResult:
    """Outcome of a run; its fields are the keys of the command's `--json` object."""

    env: str
    algo: str
    model: str
    seed: int
    episodes: int
    """Episodes of the final evaluation; 0 if the run stopped before one."""
    episode_return_mean: float | None
    episode_return_std: float | None
    env_steps: int
    """Env steps sampled over the whole run, earlier parts of a resumed run included."""
    env_steps_per_s: float
    iterations: int
    policy: str | None
    """Folder of the best policy's bundle; None if the run stopped before there was one."""
    registered: str | None
    """`name:version` of that policy in the registry; None if it is not there."""
    run: str
    """The run's folder, which `--resume` takes."""
    status: Literal["finished", "stopped"]


class TrainingObserver(Protocol):
    """Watches a run; called from the training process, between two iterations.

    Rows use the keys of `rl_service.common.metrics.METRICS`.
    """

    def on_start(
        self,
        settings: Settings,
        run_path: Path,
        total_iterations: int | None,
        start_iteration: int,
    ) -> None:
        """The run is about to sample for the first time.

        Args:
            settings: the resolved settings.
            run_path: the run's folder.
            total_iterations: iteration at which the run ends; None if another limit ends it.
            start_iteration: iterations already done; above 0 for a resumed run.
        """

    def on_iteration(self, row: Mapping[str, Any]) -> None:
        """An iteration ended; `row` is its line of `progress.jsonl`."""

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        """An evaluation ended; `row` holds the `evaluation/*` keys and `training_iteration`."""

    def on_message(self, text: str) -> None:
        """Receives a line for the user."""

    def on_finish(self, result: TrainResult) -> None:
        """The run ended by itself or was asked to stop; not called after an exception."""
