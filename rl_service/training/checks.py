"""Checks of settings against the machine, before a run writes or starts anything."""

from __future__ import annotations

import os
import tempfile
from contextlib import closing
from pathlib import Path

import gymnasium as gym
from pydantic import ValidationError

from custom_models.spaces import ActionSpec, observation_size
from rl_service.common.errors import EnvError, RegistryError
from rl_service.config.arithmetic import check_arithmetic
from rl_service.config.settings import EnvSettings, ResourceSettings, Settings
from rl_service.policies.registry import PolicyRegistry
from rl_service.policies.spaces import space_spec
from rl_service.policies.spec import first_problem, problems_of_bundles
from rl_service.rollout.autoscaler import check_policy
from rl_service.rollout.envs import make_env, raw_observation_space, try_env
from rl_service.rollout.pool import try_pool
from rl_service.rollout.text_env import TextRows
from rl_service.runtime.machine import available_cpus, available_gpus, missing_cpus


def check_settings(settings: Settings) -> list[str]:
    """Why a run with these settings cannot work here, one line for each reason.

    Makes the environment, resets it and takes one step. Where `RAY_ADDRESS` points to a cluster,
    that cluster decides about CPUs and GPUs.
    """
    problems = [*check_arithmetic(settings), *check_machine(settings)]
    return [*problems, *check_output(Path(settings.tracking.output_dir))]


def check_machine(settings: Settings, *, resumes: bool = False) -> list[str]:
    """The same for the environment, weights, registry, scaling policy, CPUs and GPUs.

    Args:
        settings: of the run.
        resumes: whether the run goes on, in the environment that it has begun with.
    """
    problems = [*_env_problems(settings, resumes), *settings.model.weights_problems()]
    problems += check_policy(settings.resources)
    problems += _registry_problems(settings.tracking.registry)
    if not os.environ.get("RAY_ADDRESS"):
        problems += _resource_problems(settings.resources)
    return problems


def _env_problems(settings: Settings, resumes: bool) -> list[str]:
    """Tries the environment; a language model must also be able to write its observations."""
    try:
        observation_space, action_space = try_env(settings.env, may_be_endless=resumes)
        if settings.env.backend == "envpool":
            try_pool(settings.env, observation_space, action_space)
        undescribed = _undescribed_spaces(settings.env)
    except EnvError as error:
        return [str(error)]
    size, spec = observation_size(observation_space), ActionSpec.from_space(action_space)
    problems = [*undescribed, *problems_of_bundles(settings.model, size, spec.num_dist_inputs)]
    unreadable = _reading_problems(settings, observation_space)
    return [*problems, *(unreadable or settings.model.prompt_problems(size, spec))]


def _undescribed_spaces(env: EnvSettings) -> list[str]:
    """Why no bundle can describe the spaces, such as a part without entries."""
    with closing(make_env(env)) as made:
        spaces = raw_observation_space(made), made.action_space
    try:
        for space in spaces:
            space_spec(space)
    except ValidationError as error:
        problem = first_problem(error)
        return [
            f"no bundle can describe the spaces of {env.id}: {problem}; change them in a wrapper"
        ]
    return []


def _reading_problems(settings: Settings, space: gym.spaces.Box) -> list[str]:
    """Why a model cannot read what is observed: numbers or text."""
    model, env_id = settings.model, settings.env.id
    if not isinstance(space, TextRows):
        if not model.reads_text:
            return []
        return [
            f"model.observation=text, and observations of {env_id} are numbers; set env.describe, "
            f"or leave model.observation out"
        ]
    if not model.reads_text:
        remedy = "set model.observation=text and model.critic=hidden_state"
        if not model.has_language_model:
            remedy = f"use llm_policy, and {remedy}"
        return [
            f"observations of {env_id} are text, and model {model.name} reads numbers; {remedy}"
        ]
    if space.brings_actions and getattr(model, "action_scoring", None) == "head":
        return [
            f"actions of {env_id} are texts that change from step to step, and the number of one "
            f"means nothing to a head; set model.action_scoring=tokens and model.finetune=lora"
        ]
    return []


def _registry_problems(root: str | None) -> list[str]:
    """Why the registry cannot be reached from here, as far as is known without asking it."""
    try:
        PolicyRegistry(root)
    except RegistryError as error:
        return [str(error)]
    return []


def check_env(env: EnvSettings) -> list[str]:
    """Why an environment cannot be used, as a list of at most one line."""
    try:
        try_env(env)
    except EnvError as error:
        return [str(error)]
    return []


def check_output(folder: Path, key: str = "-o/--output-dir") -> list[str]:
    """Why files cannot be written under a folder, as a list of at most one line.

    Makes nothing: a folder that does not exist yet is judged by its nearest parent that does.

    Args:
        folder: the folder to write to.
        key: the option or setting for another one.
    """
    return [f"output {problem}; give another one with {key}" for problem in _write_problems(folder)]


def check_folder(folder: Path) -> list[str]:
    """Why a run cannot continue in its own folder, as a list of at most one line."""
    return [
        f"run {problem}; make room or fix its permissions" for problem in _write_problems(folder)
    ]


def _write_problems(folder: Path) -> list[str]:
    existing = folder.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        with tempfile.TemporaryFile(dir=existing):
            return []
    except OSError as error:
        where = f" ({existing})" if existing != folder.absolute() else ""
        return [f"folder {folder} cannot be written{where}: {error.strerror or error}"]


def _resource_problems(resources: ResourceSettings) -> list[str]:
    cpus = available_cpus()
    remedy = "point RAY_ADDRESS to a cluster"
    too_many = missing_cpus(resources, cpus, there=f"there are {cpus}", remedy=remedy)
    problems = [too_many] if too_many else []
    if resources.num_gpus and available_gpus() < resources.num_gpus:
        problems.append(
            f"resources.num_gpus={resources.num_gpus}, and torch sees {available_gpus()} GPUs; "
            f"use resources.num_gpus=0, or install a CUDA build of torch"
        )
    return problems
