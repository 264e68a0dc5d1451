"""Gradient steps on minibatches, on a GPU as one recorded graph of launches each.

A step of a small net is some hundred kernels that each take a GPU microseconds and Python tens of
them. There a step is recorded once for each shape of a minibatch (a CUDA graph) and then replayed
as a single launch, with the same arithmetic.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call

from custom_models.heads import GaussianHead
from rl_service.algorithms.minibatches import all_columns, map_columns, own_parts, shuffled
from rl_service.algorithms.peers import ALONE, Peers

MAX_GRAPHS = 16
"""Most shapes that are recorded; others are stepped launch by launch."""
_WARMUP_STEPS = 3  # torch asks for a few before it records


class GradientStep(NamedTuple):
    """Results of a step, scalars; or of the M steps of a pass, (M,) each."""

    loss: Tensor
    grad_norm: Tensor
    """Before clipping."""


class GradientSteps(ABC):
    """Takes the gradient steps of a net."""

    @abstractmethod
    def run(self, batch: Any, order: Tensor, num_minibatches: int) -> GradientStep:
        """One pass: a step on each of the minibatches that cover a batch once.

        Args:
            batch: nested named tuples of N rows, `ActorRows` or `CriticChunks` if there are several
                learners.
            order: (N,) permutation.
            num_minibatches: M, at most N; their sizes differ by one at most.
        """


class MinibatchStep(GradientSteps):
    """Computes a loss and takes one step down its gradient.

    With several learners nothing is recorded: a recorded step cannot simply hold what they do
    together.

    Args:
        loss: of a minibatch (nested named tuples of tensors), a scalar. On a GPU it may read
            nothing that changes between steps but tensors, and may not wait for the GPU.
        optimizer: of the net that the loss depends on.
        grad_clip: largest norm of the gradient; None for no limit.
        recorded: whether a GPU may record the loss.
        peers: the learners that take the steps together.
    """

    def __init__(
        self,
        loss: Callable[[Any], Tensor],
        optimizer: FlatOptimizer,
        grad_clip: float | None,
        *,
        recorded: bool = True,
        peers: Peers = ALONE,
    ) -> None:
        self._loss = loss
        self._optimizer = optimizer
        self._grad_clip = grad_clip
        self._peers = peers
        self._recorded = recorded and optimizer.vector.is_cuda and peers.is_alone
        self._graphs: dict[tuple[torch.Size, ...], _Graph] = {}

    def run(self, batch: Any, order: Tensor, num_minibatches: int) -> GradientStep:
        if self._peers.is_alone:
            steps = [self(part) for part in shuffled(batch, order, num_minibatches)]
        else:
            parts = own_parts(batch, order, num_minibatches, self._peers)
            steps = [self._step(part, weight) for part, weight in parts]
        losses, norms = map(torch.stack, zip(*steps, strict=True))
        return GradientStep(self._peers.sum(losses), norms)

    def __call__(self, minibatch: Any) -> GradientStep:
        if not self._recorded:
            return self._step(minibatch)
        shapes = tuple(column.shape for column in all_columns(minibatch))
        if shapes not in self._graphs:
            if len(self._graphs) == MAX_GRAPHS:
                return self._step(minibatch)
            self._graphs[shapes] = _Graph(self._step, minibatch, self._optimizer)
        return self._graphs[shapes].replay(minibatch)

    def _step(self, minibatch: Any, weight: Tensor | None = None) -> GradientStep:
        loss = self._loss(minibatch)
        if weight is not None:
            loss = loss * weight
        norm = self._optimizer.step(loss, self._grad_clip, self._peers)
        return GradientStep(loss.detach(), norm)


class _Graph:
    """A step on minibatches of one shape, recorded."""

    def __init__(
        self, step: Callable[[Any], GradientStep], minibatch: Any, optimizer: FlatOptimizer
    ) -> None:
        self._inputs = map_columns(minibatch, torch.clone)
        self._graph = torch.cuda.CUDAGraph()
        with optimizer.preserved():  # the steps that warm up and record must not learn
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(_WARMUP_STEPS):
                    step(self._inputs)
            torch.cuda.current_stream().wait_stream(side)
            # Meanwhile another thread may copy weights for the rollout workers.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._outputs = step(self._inputs)

    def replay(self, minibatch: Any) -> GradientStep:
        for place, column in zip(all_columns(self._inputs), all_columns(minibatch), strict=True):
            place.copy_(column)
        self._graph.replay()
        return GradientStep(*(output.clone() for output in self._outputs))


def _without_compiler(*methods: str) -> None:
    """Lets methods of torch's optimisers run as they are.

    They import torch's compiler at their first call, only to be hidden from it: as much CPU time as
    importing torch. Nothing here compiles an optimiser.
    """
    for method in methods:
        function = inspect.unwrap(getattr(torch.optim.Optimizer, method))
        function.__dynamo_disable = function  # where `torch._compile` keeps what it would make


_without_compiler("add_param_group", "state_dict", "load_state_dict")


class FlatParameters:
    """The trainable parameters of a net, and their gradients, as views into two vectors.

    The net must stay on its device and must not be copied afterwards. Loading a state dict into
    it is fine.

    Args:
        net: its trainable parameters are gathered, the frozen ones are left alone.
    """

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        named = {name: p for name, p in net.named_parameters() if p.requires_grad}
        self._names, self.parameters = list(named), list(named.values())
        self.vector = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in self.parameters]))
        """(P,) all trainable parameters."""
        self.grad = torch.zeros_like(self.vector)
        """(P,) their gradient."""
        self.vector.grad = self.grad
        offset = 0
        for p in self.parameters:
            place = slice(offset, offset + p.numel())
            p.data = self.vector.data[place].view_as(p)
            p.grad = self.grad[place].view_as(p)
            offset = place.stop
        heads = (each for each in net.modules() if isinstance(each, GaussianHead))
        self._bounded = [head for head in heads if not head.state_dependent]

    def offset(self, parameter: Tensor) -> int:
        """Where a parameter begins in the vector."""
        first: int = self.vector.data_ptr()
        place = (parameter.data_ptr() - first) // self.vector.element_size()
        if not 0 <= place < self.vector.numel():
            raise ValueError("a frozen parameter is not in the vector")
        return place

    def gradient(self, outputs: Tensor, weights: Tensor | None = None) -> Tensor:
        """(P,) gradient of a scalar, apart from `grad`; the graph stays for another one.

        Args:
            outputs: the scalar, or an output of the net of which `weights` make one.
            weights: of the same shape; Jᵀ w is what comes out.
        """
        found = torch.autograd.grad(
            outputs, self.parameters, grad_outputs=weights, retain_graph=True
        )
        return torch.cat([g.reshape(-1) for g in found])

    def add_up(self, gradient: Tensor, peers: Peers) -> Tensor:
        """Sums, in place, the gradients (P,) of a loss that all learners have found."""
        if peers.is_alone:
            return gradient
        peers.sum(gradient)
        for head in self._bounded:
            place = self.offset(head.log_std)
            head.keep_inside(gradient[place : place + head.log_std.numel()])
        return gradient

    @torch.no_grad()
    def tangent(self, inputs: Any, direction: Tensor) -> Tensor:
        """J d: how the net's outputs change as the parameters move along a direction (P,).

        By forward-mode differentiation: one pass, and nothing of it is kept.
        """
        sizes = [p.numel() for p in self.parameters]
        moving = zip(self._names, self.parameters, direction.split(sizes), strict=True)
        with forward_ad.dual_level():
            duals = {name: forward_ad.make_dual(p, d.view_as(p)) for name, p, d in moving}
            outputs = functional_call(self.net, duals, (inputs,))
            tangent: Tensor = forward_ad.unpack_dual(outputs).tangent
        return tangent


class FlatOptimizer(FlatParameters):
    """Updates all trainable parameters of a net at once.

    Args:
        net: as in `FlatParameters`.
        build: makes the torch optimiser of the vector.
    """

    def __init__(
        self, net: nn.Module, build: Callable[[Iterable[Tensor]], torch.optim.Optimizer]
    ) -> None:
        super().__init__(net)
        self.optimizer = build([self.vector])
        self._step = inspect.unwrap(type(self.optimizer).step)
        """The bare update: for a small net, torch's hooks and profiling around it take longer."""
        self._fit_groups_to_device()

    def _fit_groups_to_device(self) -> None:
        """On a GPU the learning rate is a tensor, which a recorded step reads each time."""
        for group in self.optimizer.param_groups:
            group["lr"] = float(group["lr"])
            group["capturable"] = self.vector.is_cuda
            if self.vector.is_cuda:
                group["lr"] = torch.tensor(group["lr"], device=self.vector.device)
        for moments in self.optimizer.state.values():
            moments["step"] = moments["step"].to(self.vector.device)

    def set_lr(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def step(self, loss: Tensor, grad_clip: float | None, peers: Peers = ALONE) -> Tensor:
        """Takes one step down the gradient of `loss`.

        Args:
            loss: scalar; that of all learners together is the sum of theirs.
            grad_clip: largest norm of the gradient; None for no limit.
            peers: the learners that take the step together.

        Returns:
            Norm of the gradient before clipping, a scalar.
        """
        self.grad.zero_()
        loss.backward()
        self.add_up(self.grad, peers)
        norm: Tensor = torch.linalg.vector_norm(self.grad)
        if grad_clip is not None:
            self.grad.mul_((grad_clip / (norm + 1e-6)).clamp(max=1.0))
        with torch.no_grad():
            self._step(self.optimizer)
        return norm

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Undoes, in place, what steps inside do to parameters, gradient and moments."""
        before = [tensor.clone() for tensor in self._tensors()]
        yield
        for tensor, value in zip_longest(self._tensors(), before):
            if value is None:  # made by the first step; every moment and count starts at zero
                tensor.zero_()
            else:
                tensor.copy_(value)

    def _tensors(self) -> list[Tensor]:
        moments = self.optimizer.state.get(self.vector, {}).values()
        return [self.vector.data, self.grad, *moments]

    def state_dict(self) -> dict[str, Any]:
        """Moments and step count; the parameters themselves belong to the net."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a state, also one from another kind of device."""
        self.optimizer.load_state_dict(state)
        self._fit_groups_to_device()
