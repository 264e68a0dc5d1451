"""An actor that is a GPT-2 on the last K steps, and the cache with which it acts step by step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from custom_models.attention import Ring
from custom_models.gpt2_critic import StepReader
from custom_models.heads import policy_head
from custom_models.history import History
from custom_models.interfaces import ActingCache, Actor, Chunks
from custom_models.model_config import GPT2CriticSettings
from custom_models.spaces import ActionSpec, FloatArray


class GPT2Actor(StepReader, Actor):
    """The distribution at a step from the K steps that end in it.

    Args:
        config: of the trunk, without dropout: the probabilities at which actions were drawn must
            be those that an update starts from.
        observation_size: O.
        action_spec: the actions.
        log_std: as for `GaussianHead`.
        log_std_init: likewise.
    """

    reads_chunks = True

    def __init__(
        self,
        config: GPT2CriticSettings,
        observation_size: int,
        action_spec: ActionSpec,
        *,
        log_std: str,
        log_std_init: float,
    ) -> None:
        super().__init__(config, observation_size, action_spec)
        self.head = policy_head(self.trunk.n_embd, action_spec, log_std, log_std_init)

    def encode(self, history: History) -> Chunks:
        """The history as chunks (B, K)."""
        now = np.zeros(len(history.obs), np.int64)  # it does not read the time
        device = self.embed_ln.weight.device
        return Chunks(*(column.to(device) for column in Chunks.of_history(history, now)))

    def forward(self, inputs: Chunks) -> Tensor:
        """`dist_inputs` (B, T-K+1, D) of the steps of chunks (B, T) that have their context."""
        num_outputs = inputs.obs.shape[1] - self.context_length + 1
        hidden = self.read(self.embed(inputs), inputs.segment_ids, num_outputs)
        dist_inputs: Tensor = self.head(hidden)
        return dist_inputs

    def open_cache(self) -> ActingCache:
        return _RingCache(self)


class _RingCache(ActingCache):
    """Keys and values of the last steps, in a ring for each layer.

    Args:
        actor: whose weights stay as they are for the life of the cache.
    """

    def __init__(self, actor: GPT2Actor) -> None:
        self._actor = actor
        self._rings: list[Ring] = []
        """Empty as long as they are to be filled from whole histories."""
        self._num_envs = 0
        self._step = 0
        self._turns = torch.empty(0)

    def decide(self, history: History) -> FloatArray:
        actor, num_envs = self._actor, len(history.obs)
        self._num_envs = max(self._num_envs, num_envs)
        if num_envs < self._num_envs:  # some lag behind: rare, and the rings are for all
            self._rings = []
            return actor.decide(history).cpu().numpy()
        hidden = self._read_next(history) if self._rings else self._read_whole(history)
        dist_inputs: FloatArray = actor.head(hidden).cpu().numpy()
        return dist_inputs

    def _read_whole(self, history: History) -> Tensor:
        """Hidden states (E, C) from the whole histories, which fill the rings."""
        actor, chunks = self._actor, self._actor.encode(history)
        self._rings = [Ring(reach, 1 + actor.reads_actions) for reach in actor.reaches]
        self._step = actor.context_length - 1
        return actor.read(actor.embed(chunks), chunks.segment_ids, 1, self._rings)[:, 0]

    def _read_next(self, history: History) -> Tensor:
        """Hidden states (E, C) from the current observations, the actions before and the rings."""
        actor, device = self._actor, self._actor.embed_ln.weight.device
        self._step += 1
        parts = [actor.embed_state(torch.from_numpy(history.obs[:, -1]).to(device))]
        if actor.reads_actions:
            parts.insert(0, actor.embed_action(torch.from_numpy(history.actions[:, -1]).to(device)))
        tokens = actor.embed_ln(torch.stack(parts, 1))  # (E, n, C)
        num_earlier = torch.from_numpy(history.num_steps).to(device)
        turns = self._turns_of(self._step + 1 - len(parts), len(parts))
        return actor.trunk.step(tokens, self._rings, turns, self._step, num_earlier)

    def _turns_of(self, first: int, count: int) -> Tensor:
        """(count, 1, D/2), from a table that grows by leaps."""
        if len(self._turns) < first + count:
            steps = torch.arange(
                2 * (first + count) + 256, device=self._actor.embed_ln.weight.device
            )
            self._turns = self._actor.turns(steps)
        return self._turns[first : first + count]
