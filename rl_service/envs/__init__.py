"""Environments as the models read them: flat float32 observations, one time limit."""

from __future__ import annotations

from rl_service.config.aliases import resolve_env_id
from rl_service.envs.make import make_env, try_env

__all__ = ["make_env", "resolve_env_id", "try_env"]
