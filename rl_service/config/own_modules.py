"""Modules of the user's own, which settings name as `module:name`."""

from __future__ import annotations

import importlib
from types import ModuleType

from rl_service.common.text import one_line


def import_own(name: str) -> ModuleType:
    """Imports a module.

    Raises:
        ValueError: with the reason and what to do, if that fails.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:  # importing a user's module may raise anything
        raise ValueError(
            f"module {name} cannot be imported ({one_line(error) or type(error).__name__}); "
            f"install it or put its folder on PYTHONPATH"
        ) from error


def callables_of(module: ModuleType) -> list[str]:
    """Names that a hint may offer in place of one that is not there."""
    return [name for name, value in vars(module).items() if callable(value)]
