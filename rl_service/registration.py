"""Puts the best policy of a training into the registry."""

from __future__ import annotations

import os
from pathlib import Path

from rl_service.config.settings import TrackingSettings
from rl_service.errors import RLServiceError
from rl_service.policies.registry import (
    REGISTRY_FOLDER,
    REGISTRY_VARIABLE,
    PolicyRegistry,
    PolicyVersion,
)
from rl_service.tracking import Notify


def register_best(
    bundle: Path,
    base_model: str | None,
    tracking: TrackingSettings,
    output_dir: Path,
    notify: Notify,
) -> PolicyVersion | None:
    """Registers a bundle, under its environment, model and algorithm.

    Args:
        bundle: its folder.
        base_model: folder or name of the language model that it was trained on, if any.
        tracking: may name the registry; else the environment does.
        output_dir: the registry lies in it, beside `checkpoints`, if neither names one.
        notify: told, in one line, why there is no version.

    Returns:
        The version; None if it could not be registered, which ends no run.
    """
    given = tracking.registry or os.environ.get(REGISTRY_VARIABLE)
    try:
        registry = PolicyRegistry(given or str(output_dir / REGISTRY_FOLDER))
        return registry.register(bundle, base_model=base_model)
    except RLServiceError as error:
        notify(f"the best policy is not in the registry: {error}")
        return None
