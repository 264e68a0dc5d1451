"""Vector envs that reset an env at the step after its episode's end: gymnasium's and EnvPool's.

That step ignores the action, and its reward is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv

POOL_THREADS = 2
"""Of one EnvPool: as many as we have rollout workers."""


def open_sync(env_id: str, num_envs: int, seed: int) -> tuple[Any, Any]:
    """Gymnasium's, one env after the other in this process.

    Args:
        env_id: of gymnasium.
        num_envs: how many.
        seed: of the first env; the others have the numbers after it.

    Returns:
        The envs, and their first observations.
    """
    envs = SyncVectorEnv([partial(gym.make, env_id) for _ in range(num_envs)])
    return envs, envs.reset(seed=seed)[0]


def open_envpool(env_id: str, num_envs: int, seed: int) -> tuple[Any, Any]:
    """EnvPool's envs, written in C++. Arguments and result are those of `open_sync`."""
    import envpool  # may be missing

    envs = envpool.make(
        env_id, env_type="gymnasium", num_envs=num_envs, num_threads=POOL_THREADS, seed=seed
    )
    return envs, envs.reset()[0]


OPEN: dict[str, Callable[[str, int, int], tuple[Any, Any]]] = {
    "sync": open_sync,
    "envpool": open_envpool,
}
