"""Puts the best policy of a run into the registry."""

from __future__ import annotations

import os
from pathlib import Path

from rl_service.config.settings import Settings
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
    """Registers a run's bundle; see `register_bundle`.

    Args:
        run: a run that has a bundle.
        notify: told, in one line, why there is no version.
    """
    return register_bundle(run.bundle_path, run.settings, notify, output_dir=run.output_dir)


def register_bundle(
    bundle: Path, settings: Settings, notify: Notify, *, output_dir: Path | None = None
) -> PolicyVersion | None:
    """Registers a bundle, under its environment, model and algorithm.

    Args:
        bundle: the folder.
        settings: of its training.
        notify: told, in one line, why there is no version.
        output_dir: beside whose `checkpoints` the registry lies, unless the settings or the
            environment name another; None: that of the settings.

    Returns:
        The version; None if it could not be registered, which ends no run.
    """
<<<<<<< HEAD
    name = as_policy_name(settings.env.id, settings.model.name, settings.algorithm.name)
    given = settings.tracking.registry or os.environ.get(REGISTRY_VARIABLE)
    root = given or str(Path(output_dir or settings.tracking.output_dir, REGISTRY_FOLDER))
    try:
        return PolicyRegistry(root).register(bundle, name)
=======
    try:
        return PolicyRegistry(_root(run)).register(run.bundle_path)
>>>>>>> serve
    except RLServiceError as error:
        notify(f"the best policy is not in the registry: {error}")
        return None
