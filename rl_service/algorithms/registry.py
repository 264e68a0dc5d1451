"""Names of the algorithms, and the one place that builds one."""

from __future__ import annotations

from rl_service.algorithms.a2c import A2C
from rl_service.algorithms.base import OnPolicyAlgorithm
from rl_service.algorithms.config import build_config
from rl_service.algorithms.ppo import PPO
from rl_service.algorithms.trpo import TRPO
from rl_service.config.settings import Settings

ALGORITHMS: dict[str, type[OnPolicyAlgorithm]] = {"a2c": A2C, "ppo": PPO, "trpo": TRPO}
"""What `algorithm.name` accepts."""


def build_algorithm(settings: Settings) -> OnPolicyAlgorithm:
    """Starts the rollout workers and the learner; Ray must be running.

    Raises:
        EnvError: if the environment cannot be made or read.
    """
    algo_class = ALGORITHMS[settings.algorithm.name]
    algorithm: OnPolicyAlgorithm = build_config(settings, algo_class).build_algo()
    return algorithm
