"""Checks of settings against each other, which need neither the machine nor the environment."""

from __future__ import annotations

from custom_models.text import nearest
from rl_service.config.settings import THROUGHPUT, ResourceSettings, Settings


def check_arithmetic(settings: Settings) -> list[str]:
    """One line for each pair of settings that contradict each other."""
    return [
        *_batch_problems(settings),
        *_stop_problems(settings),
        *_gpu_problems(settings),
        *_learner_problems(settings),
        *check_elasticity(settings),
    ]


def _batch_problems(settings: Settings) -> list[str]:
    batch = settings.algorithm.train_batch_size
    envs = settings.resources.num_envs_per_env_runner
    samplers = max(1, settings.resources.num_env_runners)
    if settings.env_steps_per_update != batch:
        return _update_problems(settings)  # a whole number of updates implies everything else
    problems = []
    for name in ("minibatch_size", "critic_minibatch_size"):
        size = getattr(settings.algorithm, name, None)
        if size is not None and size > batch:
            problems.append(
                f"algorithm.{name}={size} is larger than algorithm.train_batch_size={batch}; a "
                f"minibatch is a part of the batch: use at most {batch}"
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
    num_gpus, num_learners = resources.num_gpus, resources.num_learners
    asked = {
        "learner_precision=bfloat16": resources.learner_precision == "bfloat16",
        "learner_compile=true": resources.learner_compile,
    }
    problems = [
        f"resources.{what} pays off only on a GPU; add resources.num_gpus={num_learners} or leave "
        f"it out"
        for what, is_on in asked.items()
        if is_on and not num_gpus
    ]
    if num_gpus not in (0, num_learners):
        problems.append(
            f"resources.num_gpus={num_gpus} and resources.num_learners={num_learners}, but each "
            f"learner has one GPU; use resources.num_learners={num_gpus} for all of them, "
            f"resources.num_gpus={num_learners}, or resources.num_gpus=0"
        )
    return problems


def _learner_problems(settings: Settings) -> list[str]:
    """What several learners cannot do together."""
    num_learners = settings.resources.num_learners
    optimizer = getattr(settings.algorithm, "critic_optimizer", None)
    if num_learners == 1 or optimizer != "lbfgs":
        return []
    return [
        f"algorithm.critic_optimizer=lbfgs fits the whole batch in one process, and "
        f"resources.num_learners={num_learners}; use algorithm.critic_optimizer=adam or "
        f"resources.num_learners=1"
    ]


def check_elasticity(settings: Settings) -> list[str]:
    """One line for each setting of the autoscaler that contradicts another one."""
    resources = settings.resources
    problems = _policy_problems(resources)
    if resources.max_env_runners is None:
        return [*problems, *_idle_problems(resources)]
    return [*problems, *_bound_problems(resources), *_elastic_batch_problems(settings)]


def _policy_problems(resources: ResourceSettings) -> list[str]:
    policy = resources.autoscaling_policy
    module, colon, function = policy.partition(":")
    if policy == THROUGHPUT or (module and colon and function):
        return []
    near = nearest(policy, [THROUGHPUT])
    hint = f"did you mean {near}? " if near else ""
    return [
        f"unknown resources.autoscaling_policy={policy}; {hint}"
        f"known: {THROUGHPUT}, or module:function of your own"
    ]


def _idle_problems(resources: ResourceSettings) -> list[str]:
    """Settings that have no effect while the number of workers is fixed."""
    policy = resources.autoscaling_policy
    asked = {
        f"autoscaling_policy={policy}": ":" in policy,
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


def _elastic_batch_problems(settings: Settings) -> list[str]:
    """Whether every worker has at least one vector step of a batch."""
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
