"""Checks of the settings that decide about the number of rollout workers."""

from __future__ import annotations

from rl_service.config.elasticity import THROUGHPUT
from rl_service.config.settings import ResourceSettings, Settings


def check_elasticity(settings: Settings) -> list[str]:
    """One line for each setting of the autoscaler that contradicts another one."""
    resources = settings.resources
    problems = _policy_problems(resources)
    if resources.max_env_runners is None:
        return [*problems, *_idle_problems(resources)]
    return [*problems, *_bound_problems(resources), *_batch_problems(settings)]


def _policy_problems(resources: ResourceSettings) -> list[str]:
    policy = resources.autoscaling_policy
    module, colon, function = policy.partition(":")
    if policy == THROUGHPUT or (module and colon and function):
        return []
    return [
        f"unknown resources.autoscaling_policy={policy}; give {THROUGHPUT}, or module:function of "
        f"your own"
    ]


def _idle_problems(resources: ResourceSettings) -> list[str]:
    """Settings that would do nothing, since the number of workers stays fixed."""
    policy = resources.autoscaling_policy
    asked = {
        f"autoscaling_policy={policy}": policy != THROUGHPUT,
        f"min_env_runners={resources.min_env_runners}": resources.min_env_runners > 1,
        f"max_worker_hours={resources.max_worker_hours}": resources.max_worker_hours is not None,
    }
    return [
        f"resources.{what} does nothing while the number of workers is fixed; add "
        f"resources.max_env_runners or leave it out"
        for what, is_on in asked.items()
        if is_on
    ]


def _bound_problems(resources: ResourceSettings) -> list[str]:
    start, least, most = (
        resources.num_env_runners,
        resources.min_env_runners,
        resources.max_env_runners,
    )
    assert most is not None
    if least > most:
        return [
            f"resources.min_env_runners={least} is more than resources.max_env_runners={most}; "
            f"use at most {most}"
        ]
    if start == 0:
        return [
            f"resources.num_env_runners=0 samples in the learner's own process, which never "
            f"scales; leave out resources.max_env_runners={most} or start with "
            f"resources.num_env_runners={least}"
        ]
    if not least <= start <= most:
        return [
            f"resources.num_env_runners={start} is not between resources.min_env_runners={least} "
            f"and resources.max_env_runners={most}; use {min(max(start, least), most)} or move "
            f"the bounds"
        ]
    return []


def _batch_problems(settings: Settings) -> list[str]:
    """Whether every worker has at least one vector step of a batch to take."""
    resources, batch = settings.resources, settings.env_steps_per_update
    most, envs = resources.max_env_runners, resources.num_envs_per_env_runner
    vector_steps = batch // envs
    if most is None or most <= max(1, vector_steps):
        return []
    return [
        f"resources.max_env_runners={most} is more than the {vector_steps} vector steps of a "
        f"batch ({batch} env steps / {envs} envs), and the others would have nothing to do; use "
        f"at most {vector_steps}, or lower resources.num_envs_per_env_runner"
    ]
