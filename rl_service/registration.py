"""Puts the best policy of a run into the registry."""

from __future__ import annotations

import os
from pathlib import Path

from rl_service.errors import RLServiceError
from rl_service.policies.registry import (
    REGISTRY_FOLDER,
    REGISTRY_VARIABLE,
    PolicyRegistry,
    PolicyVersion,
)
from rl_service.runs import Run
from rl_service.tracking import Notify


def register_best(run: Run, notify: Notify) -> PolicyVersion | None:
    """Registers the run's bundle, under its environment, model and algorithm.

    Args:
        run: a run that has a bundle.
        notify: told, in one line, why there is no version.

    Returns:
        The version; None if it could not be registered, which ends no run.
    """
    try:
        return PolicyRegistry(_root(run)).register(run.bundle_path)
    except RLServiceError as error:
        notify(f"the best policy is not in the registry: {error}")
        return None


def _root(run: Run) -> str:
    """Of the settings, else of the environment, else beside the run's `checkpoints`."""
    given = run.settings.tracking.registry or os.environ.get(REGISTRY_VARIABLE)
    return given or str(Path(run.output_dir, REGISTRY_FOLDER))
