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

    In a Tune trial, those that a run cannot begin without live in the trial's placement group.
    Those beyond are placed outside of it, wherever the cluster has room.
    """
    if resources.num_env_runners == 0:
        return None
    actor_class = ray.remote(
        num_cpus=resources.num_cpus_per_env_runner,
        max_restarts=0,  # a restarted actor would play the same episodes again
        concurrency_groups={HEALTH: 1},
    )(VectorRolloutWorker)
    beyond = actor_class.options(
        scheduling_strategy=PlacementGroupSchedulingStrategy(placement_group=None)
    )
    config, env_creator = ray.put(algorithm.config), ray.put(algorithm.env_creator)
    policy_class = algorithm.get_default_policy_class(algorithm.config)

    def spawn(index: int, *, is_reserved: bool) -> ActorHandle:
        return (actor_class if is_reserved else beyond).remote(
            env_creator=env_creator,
            validate_env=None,
            default_policy_class=policy_class,
            config=config,
            worker_index=index,
            num_workers=resources.num_env_runners,
            log_dir=algorithm.logdir,
            spaces=algorithm.spaces,
        )

    return Fleet(
        spawn,
        size=resources.num_env_runners,
        num_reserved=resources.num_workers_to_begin_with,
        lost_timeout_s=resources.lost_timeout_s,
    )
