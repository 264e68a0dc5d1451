"""A head on a frozen language model that acts on CartPole's observations, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable

import gymnasium as gym
import numpy as np
import torch

from custom_models.configs import LLMPolicyConfig
from custom_models.history import History
from custom_models.llm_policy import LLMActor
from custom_models.observation_text import PADDING
from custom_models.spaces import ActionSpec
from rl_service.algorithms.optimizer import FlatOptimizer
from rl_service.policies.base_model_fetch import fetch
from rl_service.runtime.process import prepare_process

OBSERVATION_SIZE = 4


class LanguagePolicies:
    """Args: `pretrained` is fetched if it is not there; None: a small random model."""

    def __init__(self, pretrained: str | None, num_layers: int | None) -> None:
        prepare_process(1)
        if pretrained is not None:
            fetch(pretrained, on_message=lambda message: None)
        torch.manual_seed(0)
        self._spec = ActionSpec.from_space(gym.spaces.Discrete(2))
        config = LLMPolicyConfig(pretrained=pretrained, num_layers=num_layers)
        self._actor = LLMActor(config, OBSERVATION_SIZE, self._spec).train()
        self._optimizer = FlatOptimizer(
            self._actor, lambda parameters: torch.optim.Adam(parameters, 1e-3, fused=True)
        )

    def close(self) -> None:
        del self._actor

    def tokens_per_prompt(self) -> float:
        prompts = self._actor.writer.prompts(self._history(256))
        return float((prompts != PADDING).sum(1).mean())

    def act_together(self, num_envs: int) -> float:
        """Seconds of one call for a vector of observations."""
        history = self._history(num_envs)
        return _seconds(lambda: self._act(history))

    def act_one_by_one(self, num_envs: int) -> float:
        """Seconds of a call for each of them."""
        histories = [self._history(1) for _ in range(num_envs)]
        return _seconds(lambda: [self._act(history) for history in histories])

    def learn_from_features(self, minibatch_size: int) -> float:
        """Seconds of a gradient step on features that rollout has brought."""
        features = self._actor.encode(self._history(minibatch_size))
        return _seconds(lambda: self._step(features))

    def learn_from_prompts(self, minibatch_size: int) -> float:
        """Seconds of a gradient step that runs the language model first."""
        history = self._history(minibatch_size)
        return _seconds(lambda: self._step(self._actor.encode(history)))

    def _history(self, batch: int) -> History:
        obs = np.random.default_rng(0).normal(size=(batch, OBSERVATION_SIZE)).astype(np.float32)
        return History.first_steps(obs, 1, self._spec)

    @torch.no_grad()
    def _act(self, history: History) -> torch.Tensor:
        dist_inputs: torch.Tensor = self._actor(self._actor.encode(history))
        return dist_inputs

    def _step(self, features: torch.Tensor) -> None:
        self._optimizer.step(self._actor(features).square().mean(), 0.5)


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
