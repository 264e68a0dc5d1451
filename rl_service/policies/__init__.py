"""Portable policies: a folder on disk, and pure inference from it. No Ray, no pickle."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_service.policies.bundle import BundledPolicy, load_bundle, write_bundle
    from rl_service.policies.runner import Actions, PolicyRunner

__all__ = ["Actions", "BundledPolicy", "PolicyRunner", "load_bundle", "write_bundle"]

_RUNNER = ("Actions", "PolicyRunner")


def __getattr__(name: str) -> Any:
    """Loads torch, which takes seconds, for those who need it: the registry does not."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    module = "runner" if name in _RUNNER else "bundle"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
