"""Starts rollout workers as RLlib would, with the placement that a growing number of them needs."""

from __future__ import annotations

import ray
from ray.actor import ActorHandle
from ray.rllib.algorithms.algorithm import Algorithm
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rl_service.config.settings import ResourceSettings
from rl_service.rollout.fleet import Fleet
from rl_service.rollout.worker import HEALTH, VectorRolloutWorker


def build_fleet(algorithm: Algorithm, resources: ResourceSettings) -> Fleet | None:
    """The rollout workers of an algorithm, not started yet; None if it samples by itself.

    A fixed number of them lives in the placement group of a Tune trial. A number that grows does
    not fit into any: those are placed outside, wherever the cluster has room.
    """
    if resources.num_env_runners == 0:
        return None
    outside = PlacementGroupSchedulingStrategy(placement_group=None)
    actor_class = ray.remote(
        num_cpus=resources.num_cpus_per_env_runner,
        max_restarts=0,  # a restarted actor would play the same episodes again
        concurrency_groups={HEALTH: 1},
        scheduling_strategy=outside if resources.is_elastic else None,
    )(VectorRolloutWorker)
    config, env_creator = ray.put(algorithm.config), ray.put(algorithm.env_creator)
    policy_class = algorithm.get_default_policy_class(algorithm.config)

    def spawn(index: int) -> ActorHandle:
        return actor_class.remote(
            env_creator=env_creator,
            validate_env=None,
            default_policy_class=policy_class,
            config=config,
            worker_index=index,
            num_workers=resources.num_env_runners,
            log_dir=algorithm.logdir,
            spaces=algorithm.spaces,
        )

    return Fleet(spawn, resources.num_env_runners, resources.lost_timeout_s)
