"""Strict settings: read from presets, files and flags, checked once, dumped with every run."""

from __future__ import annotations

from rl_service.config.load import LoadedSettings, dump_settings, load_settings
from rl_service.config.settings import Settings

__all__ = ["LoadedSettings", "Settings", "dump_settings", "load_settings"]
