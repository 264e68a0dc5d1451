"""What two cores could do at most with NumPy and torch: all work packed without a gap.

Each step of an environment costs its own `step` and a policy in NumPy, and its share of the
minibatches of two nets, whose gradients are written out with torch's fastest operations.
"""

from __future__ import annotations

import itertools
import time

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rl_service.runtime.process import prepare_process
from tests.benchmarks.subjects.samplers import BareEnvs

WIDTH = 64
NUM_CORES = 2


class Limit:
    """One process, whose time is counted as if both cores did as much.

    Args:
        env_id: of gymnasium.
        num_envs: that are stepped together, as by one of two workers.
        train_batch_size: env steps of an iteration.
        minibatch_size: steps of a gradient step.
        num_epochs: passes over the batch.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        train_batch_size: int,
        minibatch_size: int,
        num_epochs: int,
    ) -> None:
        prepare_process(1)
        torch.manual_seed(0)
        self._bare = BareEnvs(env_id, num_envs // NUM_CORES)
        space = self._bare.envs[0].observation_space.shape
        assert space is not None
        self._batch, self._epochs = train_batch_size, num_epochs
        action_space = self._bare.envs[0].action_space
        self._discrete = isinstance(action_space, gym.spaces.Discrete)
        num_outputs = (
            int(action_space.n)
            if isinstance(action_space, gym.spaces.Discrete)
            else int(np.prod(action_space.shape or ()))
        )
        sizes = (space[0], WIDTH, WIDTH, num_outputs)
        self._policy = [
            np.random.default_rng(0).normal(size=s).astype(np.float32)
            for s in itertools.pairwise(sizes)
        ]
        self._step = _WrittenOut(sizes, minibatch_size)

    def close(self) -> None:
        for env in self._bare.envs:
            env.close()

    def train(self, iterations: int) -> float:
        """Env steps a second of both cores, of so many iterations."""
        steps = iterations * self._batch
        started = time.perf_counter()
        self._sample(steps)
        num_minibatches = self._epochs * steps // self._step.size
        for _ in range(2 * num_minibatches):  # of the actor and of the critic
            self._step.take()
        return NUM_CORES * steps / (time.perf_counter() - started)

    def _sample(self, steps: int) -> None:
        num_envs = len(self._bare.envs)
        actions = self._bare.random_actions(steps // num_envs)
        obs = np.zeros((num_envs, self._policy[0].shape[0]), np.float32)
        first, second, last = self._policy
        for row in actions:
            np.tanh(np.tanh(obs @ first) @ second) @ last
            self._bare.step_all([row])


class _WrittenOut:
    """A gradient step of a net of three layers, without autograd, in memory that is there."""

    def __init__(self, sizes: tuple[int, ...], minibatch_size: int) -> None:
        self.size = minibatch_size
        pairs = list(itertools.pairwise(sizes))
        self._shapes = [(a + 1, b) for a, b in pairs]  # with the bias
        total = sum(a * b for a, b in self._shapes)
        self._vector = torch.nn.Parameter(0.1 * torch.randn(total))
        self._grad = torch.zeros(total)
        self._vector.grad = self._grad
        self._weights, self._grads = (self._views(x) for x in (self._vector.data, self._grad))
        self._adam = torch.optim.Adam([self._vector], 1e-4, fused=True)
        self._x = torch.randn(minibatch_size, sizes[0])
        self._hidden = [torch.empty(minibatch_size, b) for _, b in pairs]

    def _views(self, vector: Tensor) -> list[Tensor]:
        parts = vector.split([a * b for a, b in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    @torch.no_grad()
    def take(self) -> None:
        inputs = [self._x, *self._hidden[:-1]]
        for k, (x, weight, out) in enumerate(zip(inputs, self._weights, self._hidden, strict=True)):
            torch.addmm(weight[-1], x, weight[:-1], out=out)
            if k < len(inputs) - 1:
                out.tanh_()
        delta = self._hidden[-1] * (2.0 / self.size)
        for k in reversed(range(len(inputs))):
            torch.mm(inputs[k].T, delta, out=self._grads[k][:-1])
            torch.sum(delta, 0, out=self._grads[k][-1])
            if k:
                delta = (delta @ self._weights[k][:-1].T).mul_(1.0 - inputs[k].square())
        norm = self._grad.norm()
        self._grad.mul_((0.5 / (norm + 1e-6)).clamp(max=1.0))
        self._adam.step()
