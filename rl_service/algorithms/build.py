"""From the settings to an algorithm; nothing else touches RLlib's `AlgorithmConfig`."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.models import ModelCatalog
from ray.tune.registry import register_env

from custom_models.rllib_models import ActorCriticModelV2
from rl_service.config.settings import Settings
from rl_service.rollout.envs import make_env, raw_observation_space
from rl_service.rollout.worker import VectorRolloutWorker, create_env
from rl_service.runtime.ray_session import forget_first_job

if TYPE_CHECKING:
    from rl_service.algorithms.base import OnPolicyAlgorithm

ENV_NAME = "rl_service"
"""RLlib finds envs by name; this one makes any env from its settings."""


class OnPolicyConfig(AlgorithmConfig):  # type: ignore[misc]
    """RLlib's config with the service's settings inside (`settings`).

    `raw_observation_space` is the env's own, which bundles describe; RLlib sees a flat one.
    `has_inference_actor` says whether rollout workers ask an `InferenceActor`.
    """

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class)
        self.settings: Settings | None = None
        self.raw_observation_space: gym.Space[Any] | None = None
        self.has_inference_actor = False


def build_algorithm(settings: Settings) -> OnPolicyAlgorithm:
    """Builds the learner; Ray must be running. Rollout workers start with the first iteration.

    Raises:
        EnvError: if the environment cannot be made or read.
    """
    algorithm: OnPolicyAlgorithm = build_config(settings).build_algo()
    return algorithm


def build_config(settings: Settings) -> OnPolicyConfig:
    """RLlib config of a run on the ModelV2 stack, the one with custom models and views.

    Raises:
        EnvError: if the environment cannot be made or read.
    """
    forget_first_job()
    custom_model = settings.model.name.replace(".", "/")  # RLlib takes a dot for a class path
    ModelCatalog.register_custom_model(custom_model, ActorCriticModelV2)
    register_env(ENV_NAME, create_env)
    resources, algorithm = settings.resources, settings.algorithm
    pooled = settings.env.backend == "envpool"
    config = OnPolicyConfig(algo_class=settings.algorithm.import_implementation())
    config.settings = settings
    config.has_inference_actor = settings.has_inference_actor
    with closing(make_env(settings.env)) as env:
        observation_space, action_space = env.observation_space, env.action_space
        config.raw_observation_space = raw_observation_space(env)
    config.api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
    config.framework("torch")
    config.environment(
        env=ENV_NAME,
        env_config={"settings": settings.env.model_dump(), "seed": settings.seed},
        observation_space=observation_space,
        action_space=action_space,
        disable_env_checking=True,
    )
    config.env_runners(
        env_runner_cls=VectorRolloutWorker,
        num_env_runners=0,  # of RLlib's workers; this package's are a `Fleet`
        # A pool steps all others itself.
        num_envs_per_env_runner=1 if pooled else resources.num_envs_per_env_runner,
        rollout_fragment_length=settings.env_steps_per_update // resources.num_envs_per_env_runner,
        preprocessor_pref=None,
        exploration_config={"type": "StochasticSampling"},
    )
    config.training(
        gamma=algorithm.gamma,
        train_batch_size=settings.env_steps_per_update,
        model={
            "custom_model": custom_model,
            "custom_model_config": {"net": settings.model.model_dump()},
        },
    )
    # Of this process: further learners ask for their own.
    config.resources(num_gpus=min(1, resources.num_gpus), num_cpus_for_main_process=0)
    config.reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=0)
    config.debugging(log_level="WARN")  # seeded by `seed_process`
    config.experimental(_disable_preprocessor_api=True)
    return config
