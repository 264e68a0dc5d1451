"""Portable policies: a folder on disk, and pure inference from it. No Ray, no pickle."""

from rl_service.policies.bundle import BundledPolicy, load_bundle, write_bundle
from rl_service.policies.runner import Actions, PolicyRunner

__all__ = ["Actions", "BundledPolicy", "PolicyRunner", "load_bundle", "write_bundle"]
