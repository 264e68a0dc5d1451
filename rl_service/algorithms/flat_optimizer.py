"""All parameters of a net as one vector, and one optimiser step over it.

A small net spends more time in the optimiser's bookkeeping for each tensor than in arithmetic.
Here the parameters and gradients of a net are views into two vectors, so that clipping and the
update are a handful of operations; the numbers are those of the tensor-by-tensor optimiser.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call


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

    @torch.no_grad()
    def tangent(self, inputs: Tensor, direction: Tensor) -> Tensor:
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
        """The update alone: torch's hooks and profiling around it take longer for a small net."""
        self._fit_groups_to_device()

    def _fit_groups_to_device(self) -> None:
        """On a GPU the learning rate is a tensor, which a recorded step reads anew each time."""
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

    def step(self, loss: Tensor, grad_clip: float | None) -> Tensor:
        """Goes one step down the gradient of `loss`.

        Args:
            loss: scalar.
            grad_clip: largest norm of the gradient; None for no limit.

        Returns:
            Norm of the gradient before clipping, a scalar.
        """
        self.grad.zero_()
        loss.backward()
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
        """Goes on from a state, also from one of another kind of device."""
        self.optimizer.load_state_dict(state)
        self._fit_groups_to_device()
