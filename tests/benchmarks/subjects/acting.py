"""An actor that remembers, step by step in a rollout worker's way."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_models.configs import GPT2CriticConfig
from custom_models.history import History, RunningHistory
from custom_models.nets import build_actor_critic
from rl_service.runtime.process import prepare_process
from tests.benchmarks.nets import ACTIONS, OBSERVATION_SIZE


class Acting:
    """A GPT-2 actor of one layer on E random envs.

    Args:
        context_length: K.
        num_envs: E.
    """

    def __init__(self, context_length: int, num_envs: int) -> None:
        prepare_process(1)  # as a worker does
        torch.manual_seed(0)
        config = GPT2CriticConfig(actor_net="gpt2", actor_context_length=context_length)
        self._actor: Any = build_actor_critic(
            config, OBSERVATION_SIZE, ACTIONS, with_critic=False
        ).actor
        self._history = RunningHistory(num_envs, context_length, ACTIONS)
        self._shape = (num_envs, OBSERVATION_SIZE)
        self._rng = np.random.default_rng(0)

    def close(self) -> None:
        pass

    @torch.inference_mode()
    def seconds_per_step(self, num_steps: int, way: str) -> float:
        """Seconds of a step of all envs.

        Args:
            num_steps: that are timed.
            way: `cache`, opened before the first step; `plain`, which computes all K steps of the
                history in each layer; or `last`, which computes only what the last one looks at.
        """
        cache: Any = self._actor.open_cache()
        decide = {"cache": cache.decide, "plain": self._plain, "last": self._actor.decide}[way]
        started = time.perf_counter()
        for _ in range(num_steps):
            obs = self._rng.standard_normal(self._shape, np.float32)
            decide(self._history.observed(obs))
            self._history.acted(np.zeros(len(obs), np.int64))
        return (time.perf_counter() - started) / num_steps

    def _plain(self, history: History) -> Tensor:
        actor, chunks = self._actor, self._actor.encode(history)
        length = history.obs.shape[1]
        hidden = actor.read(actor.embed(chunks), chunks.segment_ids, length)
        dist_inputs: Tensor = actor.head(hidden[:, -1])
        return dist_inputs
