"""Checks between settings of different groups that need neither the machine nor the env."""

from __future__ import annotations

from rl_service.config.algorithms import A2CSettings
from rl_service.config.elasticity_checks import check_elasticity
from rl_service.config.settings import Settings


def check_arithmetic(settings: Settings) -> list[str]:
    """One line for each pair of settings that contradict each other."""
    return [
        *_batch_problems(settings),
        *_stop_problems(settings),
        *_gpu_problems(settings),
        *check_elasticity(settings),
    ]


def _batch_problems(settings: Settings) -> list[str]:
    batch, minibatch = settings.algorithm.train_batch_size, settings.algorithm.critic_minibatch_size
    envs = settings.resources.num_envs_per_env_runner
    samplers = max(1, settings.resources.num_env_runners)
    if isinstance(settings.algorithm, A2CSettings):
        return _update_problems(settings)  # a whole number of updates implies all else
    problems = []
    if minibatch > batch:
        problems.append(
            f"algorithm.minibatch_size={minibatch} is larger than "
            f"algorithm.train_batch_size={batch}; a minibatch is a part of the batch: "
            f"use at most {batch}"
        )
    if batch % envs:
        problems.append(
            f"algorithm.train_batch_size={batch} is not divisible by "
            f"resources.num_envs_per_env_runner={envs}, and a worker steps all its envs together: "
            f"use {max(1, round(batch / envs)) * envs}"
        )
    if batch < envs * samplers:
        problems.append(
            f"algorithm.train_batch_size={batch} is less than one step of every env "
            f"({samplers} workers x {envs} envs = {envs * samplers}); "
            f"raise it or lower resources.num_envs_per_env_runner"
        )
    return problems


def _update_problems(settings: Settings) -> list[str]:
    """Whether an iteration holds a whole number of updates."""
    batch, update = settings.algorithm.train_batch_size, settings.env_steps_per_update
    if batch % update == 0:
        return []
    return [
        f"algorithm.train_batch_size={batch} is not divisible by the {update} env steps of an "
        f"update (algorithm.rollout_fragment_length of all envs of all workers); "
        f"use {max(1, round(batch / update)) * update}"
    ]


def _stop_problems(settings: Settings) -> list[str]:
    stop = settings.stop
    length = stop.iterations or stop.env_steps
    if length is None and settings.algorithm.lr_schedule == "linear":
        return [
            "algorithm.lr_schedule=linear needs the length of the run; "
            "give stop.iterations or stop.env_steps"
        ]
    if length is None and stop.time_s is None and stop.episode_return_mean is None:
        return [
            "the run would never end, since every setting of stop is null; "
            "give stop.iterations, stop.env_steps, stop.time_s or stop.episode_return_mean"
        ]
    return []


def _gpu_problems(settings: Settings) -> list[str]:
    resources = settings.resources
    asked = {
        "learner_precision=bfloat16": resources.learner_precision == "bfloat16",
        "learner_compile=true": resources.learner_compile,
    }
    return [
        f"resources.{what} pays on a GPU only; add resources.num_gpus=1 or leave it out"
        for what, is_on in asked.items()
        if is_on and not resources.num_gpus
    ]
