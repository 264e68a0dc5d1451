"""PPO as CleanRL writes it: a loop in one file, with torch's autograd and Adam.

Its manner is that of `ppo.py` and `ppo_continuous_action.py` (https://docs.cleanrl.dev), compiled
that of LeanRL (https://github.com/meta-pytorch/LeanRL), which compiles the policy's step and the
whole update. What they compute only for their logs (KL, clipped fraction, entropy) is left out, and
so are their wrappers that normalise observations and rewards: the others here have none, either.
"""

from __future__ import annotations

import time
from collections import deque

import numpy as np
import torch
from gymnasium.spaces import Discrete
from torch import nn
from torch.distributions import Distribution

from tests.benchmarks.subjects.cleanrl_agent import Agent, Batch
from tests.benchmarks.subjects.vector_envs import OPEN

LR = 3e-4
GAMMA, LAMBDA = 0.99, 0.95
GRAD_CLIP = 0.5


class CleanRLTraining:
    """One run.

    Args:
        env_id: of gymnasium.
        envs: of `vector_envs.OPEN`.
        compiled: whether `torch.compile` is used, at the first iteration.
        num_envs: how many.
        train_batch_size: env steps of an iteration.
        minibatch_size: env steps of a gradient step.
        num_epochs: passes over each batch.
        seed: of everything random.
    """

    def __init__(
        self,
        env_id: str,
        envs: str,
        compiled: bool,
        num_envs: int,
        train_batch_size: int,
        minibatch_size: int,
        num_epochs: int,
        seed: int = 1,
    ) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        Distribution.set_default_validate_args(False)
        self._envs, obs = OPEN[envs](env_id, num_envs, seed)
        self._train_batch_size, self._minibatch_size = train_batch_size, minibatch_size
        self._num_epochs, self._num_steps = num_epochs, train_batch_size // num_envs
        space = self._envs.single_action_space
        self._bounds = None if isinstance(space, Discrete) else (space.low, space.high)
        self._agent = Agent(obs.shape[1], space)
        # As a tensor, so that compiled code does not take the rate for a constant.
        lr = torch.tensor(LR) if compiled else LR
        self._optimizer = torch.optim.Adam(self._agent.parameters(), lr=lr, eps=1e-5)
        self._act = torch.compile(self._agent.act) if compiled else self._agent.act
        self._update = torch.compile(self._gradient_step) if compiled else self._gradient_step
        self._obs = torch.as_tensor(obs, dtype=torch.float32)
        self._resets = torch.zeros(num_envs, dtype=torch.bool)
        self._running_returns = np.zeros(num_envs)
        self._returns: deque[float] = deque(maxlen=100)

    def close(self) -> None:
        self._envs.close()

    def train(self, iterations: int) -> float:
        """Trains on; env steps a second."""
        started = time.perf_counter()
        for _ in range(iterations):
            self._learn(self._sample())
        return iterations * self._train_batch_size / (time.perf_counter() - started)

    def episode_return(self) -> float:
        """Mean of the last 100 episodes of training."""
        return float(np.mean(self._returns))

    def _sample(self) -> Batch:
        rows = [self._step() for _ in range(self._num_steps)]
        columns = [torch.stack(column) for column in zip(*rows, strict=True)]
        obs, actions, action_logp, values, rewards, terminated, ended, resets = columns
        next_values = torch.cat([values[1:], self._act(self._obs)[2][None]])  # (T, N)
        deltas = rewards + GAMMA * next_values * ~terminated - values
        advantages = _discounted_sums(deltas, GAMMA * LAMBDA * ~ended)
        by_step = (obs, actions, action_logp, advantages, advantages + values, ~resets)
        return Batch(*(column.flatten(0, 1) for column in by_step))  # (T, N, ...) -> (B, ...)

    def _step(self) -> tuple[torch.Tensor, ...]:
        """One vector step."""
        obs, resets = self._obs, self._resets
        actions, action_logp, values = self._act(obs)
        sent = actions.numpy()
        if self._bounds is not None:
            sent = sent.clip(*self._bounds)
        next_obs, rewards, terminated, truncated, _ = self._envs.step(sent)
        ended = terminated | truncated
        self._count(rewards, ended)
        self._obs = torch.as_tensor(next_obs, dtype=torch.float32)
        self._resets = torch.tensor(ended)
        rewards = torch.as_tensor(rewards, dtype=torch.float32)
        return (
            *(obs, actions, action_logp, values),
            *(rewards, torch.tensor(terminated), self._resets, resets),
        )

    def _count(self, rewards: np.ndarray, ended: np.ndarray) -> None:
        self._running_returns += rewards
        if ended.any():
            self._returns.extend(self._running_returns[ended])
            self._running_returns[ended] = 0.0

    def _learn(self, batch: Batch) -> None:
        for _ in range(self._num_epochs):
            for rows in torch.randperm(self._train_batch_size).split(self._minibatch_size):
                self._update(Batch(*(column[rows] for column in batch)))

    def _gradient_step(self, batch: Batch) -> None:
        self._optimizer.zero_grad()
        self._agent.loss(batch).backward()
        nn.utils.clip_grad_norm_(self._agent.parameters(), GRAD_CLIP)
        self._optimizer.step()


def _discounted_sums(deltas: torch.Tensor, decays: torch.Tensor) -> torch.Tensor:
    """GAE's sums from the last step back, `(T, N)`.

    In numpy, whose small operations cost least: a thousandth of an iteration. Compiled, 256 steps
    would be unrolled.
    """
    sums, factors = deltas.numpy().copy(), decays.numpy()
    for t in reversed(range(len(sums) - 1)):
        sums[t] += factors[t] * sums[t + 1]
    return torch.as_tensor(sums)
