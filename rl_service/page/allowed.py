"""Which environments a play may make: a policy bundle may be a stranger's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from rl_service.common.errors import EnvError
from rl_service.config.presets import resolve_env_id
from rl_service.config.settings import EnvSettings
from rl_service.rollout import partly_observed, text_tasks  # noqa: F401 - register environments


def check_env_is_allowed(env: EnvSettings, allow_modules: Sequence[str]) -> None:
    """Checks that making an environment imports no module that a stranger's bundle has named.

    Args:
        env: of a bundle.
        allow_modules: modules that the operator trusts, with their submodules.

    Raises:
        EnvError: if it is neither in gymnasium's registry nor in one of these modules, if its
            arguments hold text, which may be a path or a module, or if what describes its
            observations is in no such module.
    """
    env_id, _ = resolve_env_id(env.id)
    module, colon, _ = env_id.partition(":")
    if not colon:
        entry_point = getattr(gym.registry.get(env_id), "entry_point", None)
        module = entry_point.partition(":")[0] if isinstance(entry_point, str) else ""
    describer, has_describer, _ = (env.describe or "").partition(":")
    if has_describer and not _is_in(describer, allow_modules):
        raise EnvError(
            f"environment {env_id} is not played: env.describe would import the module "
            f"{describer}, which a policy may not choose; if you trust that module, allow it with "
            f"--allow-module {describer}"
        )
    if _is_in(module, allow_modules):
        return
    if colon:
        raise EnvError(
            f"environment {env_id} is not played: it would import the module {module}, which a "
            f"policy may not choose; if you trust that module, allow it with --allow-module "
            f"{module}"
        )
    if env_id not in gym.registry:
        raise EnvError(
            f"environment {env_id} is not played: gymnasium has no such environment here; install "
            f"the package that registers it"
        )
    if _holds_text(env.kwargs):
        raise EnvError(
            f"environment {env_id} is not played: env.kwargs holds text, which may name a file or "
            f"a module; if you trust the policy, allow it with --allow-module {module}"
        )


def _is_in(module: str, allow_modules: Sequence[str]) -> bool:
    return any(f"{module}.".startswith(f"{each}.") for each in allow_modules)


def _holds_text(value: Any) -> bool:
    if isinstance(value, dict):  # keys are names of arguments
        return any(map(_holds_text, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_holds_text, value))
    return isinstance(value, str)
