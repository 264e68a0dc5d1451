"""Policies as a learner has them, and batches for them, without Ray and without sampling."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch
from ray.rllib.models import MODEL_DEFAULTS, ModelCatalog

from custom_models.distributions import distribution
from custom_models.interfaces import PADDING_SEGMENT, Chunks
from custom_models.model_config import ModelConfig
from custom_models.rllib_models import ActorCriticModelV2
from rl_service.algorithms.batch import ActorRows, CriticChunks
from rl_service.algorithms.build import OnPolicyConfig
from rl_service.algorithms.policy import ActorCriticPolicy
from rl_service.algorithms.ppo import PPOPolicy
from rl_service.config.algorithms import PPOSettings
from rl_service.config.settings import Settings

OBS_SIZE = 7
SPACES: dict[str, gym.Space[Any]] = {
    "discrete": gym.spaces.Discrete(3),
    "multi_discrete": gym.spaces.MultiDiscrete([3, 2, 4]),
    "box": gym.spaces.Box(-1.0, 1.0, (2,)),
}


def policy_of(
    space: gym.Space[Any], model: ModelConfig, kind: type[PPOPolicy] = PPOPolicy, **algorithm: Any
) -> PPOPolicy:
    """A learner's policy; `algorithm` are settings of PPO."""
    ModelCatalog.register_custom_model("tests", ActorCriticModelV2)
    settings = Settings(model=model, algorithm=PPOSettings(**algorithm))
    net = {"custom_model": "tests", "custom_model_config": {"net": model.model_dump()}}
    config = {
        **OnPolicyConfig().to_dict(),
        "settings": settings,
        "worker_index": 0,
        "model": {**MODEL_DEFAULTS, **net},
    }
    return kind(gym.spaces.Box(-1.0, 1.0, (OBS_SIZE,)), space, config)


def actor_rows(policy: ActorCriticPolicy, num_rows: int) -> ActorRows:
    """Rows sampled by a policy from which the present one differs, some beyond the clip."""
    inputs = torch.randn(num_rows, policy.net.actor.num_inputs or OBS_SIZE)
    with torch.no_grad():
        dist_inputs = policy.net.actor(inputs)
        dist_inputs = dist_inputs + 0.3 * torch.randn_like(dist_inputs)
    dist = distribution(policy.action_spec, dist_inputs)
    actions = dist.sample()
    return ActorRows(
        inputs, actions, dist.log_prob(actions), dist_inputs, torch.randn(num_rows) * 3.0
    )


def critic_chunks(num_rows: int) -> CriticChunks:
    """Steps of a critic, of which some do not count."""
    obs = torch.randn(num_rows, 1, OBS_SIZE)
    unread = torch.zeros(num_rows, 1)
    chunks = Chunks(obs, unread.long(), unread, unread.long(), unread.long())
    targets, outputs = torch.randn(2, num_rows, 1)
    return CriticChunks(chunks, torch.rand(num_rows, 1) < 0.9, targets, 0.3 * outputs)


def trunk_chunks(context_length: int) -> CriticChunks:
    """Chunks with their context: several episodes, padding, steps that do not count."""
    num_chunks, num_values = 23, 9
    num_steps = context_length - 1 + num_values
    segments = torch.zeros(num_chunks, num_steps, dtype=torch.long)
    segments[::2, num_steps // 2 :] = 1
    segments[1, :3] = segments[2, :] = PADDING_SEGMENT
    segments[3, -2:] = 5
    obs = torch.randn(num_chunks, num_steps, OBS_SIZE)
    rest = torch.zeros(num_chunks, num_steps)
    chunks = Chunks(obs, rest.long(), rest, rest.long(), segments)
    targets, outputs = torch.randn(2, num_chunks, num_values)
    return CriticChunks(chunks, torch.rand(num_chunks, num_values) < 0.9, targets, 0.3 * outputs)


def chunk_rows(policy: ActorCriticPolicy, chunks: CriticChunks) -> ActorRows:
    """The same steps, as rows that an actor which reads chunks has sampled."""
    with torch.no_grad():
        dist_inputs = policy.net.actor(chunks.chunks)
        dist_inputs = dist_inputs + 0.3 * torch.randn_like(dist_inputs)
    dist = distribution(policy.action_spec, dist_inputs)
    actions, advantages = dist.sample(), 3.0 * chunks.targets
    logp = dist.log_prob(actions)
    return ActorRows(chunks.chunks, actions, logp, dist_inputs, advantages, chunks.loss_mask)
