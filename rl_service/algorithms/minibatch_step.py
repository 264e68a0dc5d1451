"""One gradient step on a minibatch, on a GPU as one recorded graph of launches.

A step of a small net is some hundred kernels that each take a GPU microseconds and Python tens of
them. There a step is recorded once for each shape of a minibatch (a CUDA graph) and then replayed
as a single launch, with the same arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_service.algorithms.flat_optimizer import FlatOptimizer

MAX_GRAPHS = 16
"""Shapes that are recorded; a further one is stepped launch by launch."""
_WARMUP_STEPS = 3  # torch asks for a few before it records


class Stepped(NamedTuple):
    """What a step was like, scalars."""

    loss: Tensor
    grad_norm: Tensor
    """Before clipping."""


class MinibatchStep:
    """Computes a loss and goes one step down its gradient.

    Args:
        loss: of a minibatch (nested named tuples of tensors), a scalar. On a GPU it may read
            nothing that changes between steps but tensors, and may not wait for the GPU.
        optimizer: of the net that the loss depends on.
        grad_clip: largest norm of the gradient; None for no limit.
        recorded: whether a GPU may record the loss.
    """

    def __init__(
        self,
        loss: Callable[[Any], Tensor],
        optimizer: FlatOptimizer,
        grad_clip: float | None,
        *,
        recorded: bool = True,
    ) -> None:
        self._loss = loss
        self._optimizer = optimizer
        self._grad_clip = grad_clip
        self._recorded = recorded and optimizer.vector.is_cuda
        self._graphs: dict[tuple[torch.Size, ...], _Graph] = {}

    def __call__(self, minibatch: Any) -> Stepped:
        if not self._recorded:
            return self._step(minibatch)
        shapes = tuple(column.shape for column in _columns(minibatch))
        if shapes not in self._graphs:
            if len(self._graphs) == MAX_GRAPHS:
                return self._step(minibatch)
            self._graphs[shapes] = _Graph(self._step, minibatch, self._optimizer)
        return self._graphs[shapes].replay(minibatch)

    def _step(self, minibatch: Any) -> Stepped:
        loss = self._loss(minibatch)
        return Stepped(loss.detach(), self._optimizer.step(loss, self._grad_clip))


class _Graph:
    """A step on minibatches of one shape, recorded."""

    def __init__(
        self, step: Callable[[Any], Stepped], minibatch: Any, optimizer: FlatOptimizer
    ) -> None:
        self._inputs = map_columns(minibatch, torch.clone)
        self._graph = torch.cuda.CUDAGraph()
        with optimizer.preserved():  # the steps to warm up and to record are no learning
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(_WARMUP_STEPS):
                    step(self._inputs)
            torch.cuda.current_stream().wait_stream(side)
            # Meanwhile another thread may copy weights for the rollout workers.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._outputs = step(self._inputs)

    def replay(self, minibatch: Any) -> Stepped:
        for place, column in zip(_columns(self._inputs), _columns(minibatch), strict=True):
            place.copy_(column)
        self._graph.replay()
        return Stepped(*(output.clone() for output in self._outputs))


def map_columns(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Applies `change` to every tensor of nested named tuples."""
    if isinstance(batch, Tensor):
        return change(batch)
    return type(batch)(*(map_columns(column, change) for column in batch))


def _columns(batch: Any) -> list[Tensor]:
    if isinstance(batch, Tensor):
        return [batch]
    return [column for part in batch for column in _columns(part)]
