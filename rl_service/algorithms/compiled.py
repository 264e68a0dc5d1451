"""Passes over a batch in machine code, for nets on a CPU: see `feed_forward.c` and `gpt2.c`.

Without a C compiler ([machine_code.py](machine_code.py)), torch takes the same steps, several times
slower.
"""

from __future__ import annotations

import ctypes
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from custom_models.heads import (
    LOG_STD_MAX,
    LOG_STD_MIN,
    CategoricalHead,
    FeedForwardActor,
    GaussianHead,
    StackActor,
    linear_layers,
)
from custom_models.interfaces import Chunks
from custom_models.nets import MLPCritic
from rl_service.algorithms.machine_code import library
from rl_service.algorithms.optimizer import FlatOptimizer, GradientStep, GradientSteps
from rl_service.algorithms.peers import ALONE, Peers

_ACTIVATIONS = {None: 0, "tanh": 1, "relu": 2}
MOST_OUTPUTS = 4096  # of which C keeps a few copies on its stack
_SQUARED_ERROR, _CATEGORICAL, _GAUSSIAN = range(3)


class Surrogate(NamedTuple):
    """PPO's clipped surrogate, less the entropy bonus, plus the KL penalty, of `ActorRows`."""

    clip_param: float
    entropy_coeff: float
    kl_coeff: float


class SquaredError(NamedTuple):
    """Mean squared error of `CriticChunks`."""

    vf_clip_param: float | None


Loss = Surrogate | SquaredError


def compiled_steps(
    optimizer: FlatOptimizer,
    loss: Callable[[], Loss | None],
    grad_clip: float | None,
    peers: Peers = ALONE,
) -> CompiledSteps | None:
    """Steps of a net in machine code; None if torch has to take them.

    Args:
        optimizer: of an actor or a critic.
        loss: of that net, as it is when a pass begins; None for one that is not known here.
        grad_clip: largest norm of the gradient; None for no limit.
        peers: the learners that take the steps together.
    """
    if loss() is None or not _is_plain_adam(optimizer):
        return None
    kind = _kind_of(optimizer.net)
    compiled = None if kind is None else library()
    if kind is None or compiled is None:
        return None
    return kind(compiled, optimizer, loss, grad_clip, peers)


def _is_plain_adam(optimizer: FlatOptimizer) -> bool:
    """Whether its steps are those of `take_step` in C."""
    adam, vector = optimizer.optimizer, optimizer.vector
    return (
        type(optimizer) is FlatOptimizer
        and type(adam) is torch.optim.Adam
        and len(adam.param_groups) == 1
        and not any(adam.param_groups[0][name] for name in ("weight_decay", "amsgrad", "maximize"))
        and vector.dtype == torch.float32
        and not vector.is_cuda
    )


def _kind_of(net: Any) -> type[CompiledSteps] | None:
    if not all(parameter.requires_grad for parameter in net.parameters()):
        return None
    head = getattr(net, "head", None)
    is_known = type(head) in (type(None), CategoricalHead, GaussianHead)
    if not is_known or getattr(head, "state_dependent", False):
        return None
    if type(net) in (FeedForwardActor, StackActor, MLPCritic):
        fits = linear_layers(net.body) is not None
        return FeedForwardSteps if fits and last_layer(net).out_features < MOST_OUTPUTS else None
    if not hasattr(net, "reaches"):
        return None
    from rl_service.algorithms.compiled_gpt2 import GPT2Steps, reads_trunk  # loads transformers

    return GPT2Steps if reads_trunk(net) else None


def last_layer(net: Any) -> nn.Linear:
    """The layer whose outputs are a critic's values, an actor's logits or its means."""
    head: Any = getattr(net, "head", None)
    last: Any = net.value_head if head is None else getattr(head, "logits", None) or head.mean
    return last  # type: ignore[no-any-return]


class CompiledSteps(GradientSteps):
    """Gradient steps on the minibatches of a pass; for a single learner without Python in between.

    Args:
        compiled: the compiled sources.
        optimizer: of the net: Adam.
        loss: of the net, as it is when a pass begins.
        grad_clip: largest norm of the gradient; None for no limit.
        peers: the learners that take the steps together.
    """

    prefix: str
    """Of the names of the C functions for this kind of net."""

    def __init__(
        self,
        compiled: ctypes.CDLL,
        optimizer: FlatOptimizer,
        loss: Callable[[], Loss | None],
        grad_clip: float | None,
        peers: Peers = ALONE,
    ) -> None:
        self.optimizer = optimizer
        self._peers = peers
        self._library, self._loss = compiled, loss
        self._gradient = getattr(compiled, f"{self.prefix}_gradient")
        self._room = getattr(compiled, f"{self.prefix}_room")
        self._memory = torch.empty(0)
        head = getattr(optimizer.net, "head", None)
        self._log_std = optimizer.offset(head.log_std) if isinstance(head, GaussianHead) else None
        self._grad_clip = math.inf if grad_clip is None else grad_clip

    @abstractmethod
    def plan_and_inputs(self, inputs: Any, num_steps: int) -> tuple[Any, Any, list[Tensor]]:
        """The net and what it reads, for C.

        Args:
            inputs: rows or chunks.
            num_steps: of each row, the last ones, that have an output.

        Returns:
            A structure, the address of what is read, and the tensors that must live as long.
        """

    def run(self, batch: Any, order: Tensor, num_minibatches: int) -> GradientStep:
        columns, inputs, kept = self._read(batch)
        mask = batch.loss_mask
        num_steps = 1 if mask is None else mask.shape[1]
        plan, inputs, more_kept = self.plan_and_inputs(inputs, num_steps)
        room = self._room(ctypes.byref(plan))
        if len(self._memory) != room:
            self._memory = torch.zeros(room)
        results = GradientStep(torch.empty(num_minibatches), torch.empty(num_minibatches))
        given: list[Any] = [ctypes.byref(each) for each in (self._net(), columns, plan)]
        given += [inputs, pointer(self._memory)]
        if self._peers.is_alone:
            counts = map(ctypes.c_int64, (len(order), num_minibatches))
            self._library.pass_over(
                self._gradient, *given, pointer(order), *counts, *map(pointer, results)
            )
        else:
            self._run_with_peers(given, order, results)
        del kept, more_kept
        self._moments()["step"] += num_minibatches
        return results

    def _run_with_peers(self, given: list[Any], order: Tensor, results: GradientStep) -> None:
        """Gradients of this learner's rows, which all learners add up before each step.

        Args:
            given: the first arguments of a gradient in C.
            order: (N,) permutation.
            results: of the pass, to be filled.
        """
        for i, rows in enumerate(order.tensor_split(len(results.loss))):
            places = map(ctypes.c_int64, (len(rows), *self._peers.bounds(len(rows))))
            results.loss[i] = self._gradient(*given, pointer(rows), *places)
            self._peers.sum(self.optimizer.grad)
            results.grad_norm[i] = self._library.take_step(*given[:2])
        self._peers.sum(results.loss)

    def _net(self) -> _Net:
        """The parameters, their gradient and the optimiser as they are now."""
        [group] = self.optimizer.optimizer.param_groups
        moments = self._moments()
        vectors = (self.optimizer.vector, self.optimizer.grad)
        return _Net(
            self.optimizer.vector.numel(),
            *map(address, (*vectors, moments["exp_avg"], moments["exp_avg_sq"])),
            group["lr"],
            *group["betas"],
            group["eps"],
            self._grad_clip,
            int(moments["step"]),
        )

    def _moments(self) -> dict[str, Tensor]:
        """The state of torch's Adam, which makes it with its first step."""
        vector = self.optimizer.vector
        state: dict[str, Tensor] = self.optimizer.optimizer.state[vector]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros(2, vector.numel()).unbind()
        return state

    def _read(self, batch: Any) -> tuple[_Batch, Any, list[Tensor]]:
        """The columns of a batch, what the net reads, and the tensors that must live as long."""
        loss = self._loss()
        rest: dict[str, Any]
        columns: dict[str, torch.dtype]
        if isinstance(loss, Surrogate):
            inputs = batch.inputs
            head: Any = self.optimizer.net.head
            discrete = isinstance(head, CategoricalHead)
            sizes = head.sizes if discrete else ()
            choices = (ctypes.c_int64 * len(sizes))(*sizes)
            columns = {
                "actions": torch.int64 if discrete else torch.float32,
                "action_logp": torch.float32,
                "dist_inputs": torch.float32,
                "advantages": torch.float32,
            }
            rest = {
                "kind": _CATEGORICAL if discrete else _GAUSSIAN,
                "num_choices": len(sizes),
                "sizes": choices,
                "log_std": self._log_std or 0,
                "log_std_min": LOG_STD_MIN,
                "log_std_max": LOG_STD_MAX,
                "clip": loss.clip_param,
                "entropy_coeff": loss.entropy_coeff,
                "kl_coeff": loss.kl_coeff,
            }
        else:
            assert loss is not None
            inputs = batch.chunks
            columns = {"targets": torch.float32, "outputs": torch.float32}
            clip = math.inf if loss.vf_clip_param is None else loss.vf_clip_param
            rest = {"kind": _SQUARED_ERROR, "vf_clip": clip}
        kept = {name: plain(getattr(batch, name), dtype) for name, dtype in columns.items()}
        if batch.loss_mask is not None:
            kept["mask"] = plain(batch.loss_mask, torch.bool)
        addresses = {name: address(each) for name, each in kept.items()}
        rest["num_outputs"] = last_layer(self.optimizer.net).out_features
        return _Batch(**addresses, **rest), inputs, list(kept.values())


class FeedForwardSteps(CompiledSteps):
    """Steps of a small actor, or of a critic that is an MLP."""

    prefix = "feed_forward"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        optimizer, net = self.optimizer, cast(Any, self.optimizer.net)
        layers = [
            _Layer(
                layer.in_features,
                layer.out_features,
                optimizer.offset(layer.weight),
                optimizer.offset(layer.bias),
                _ACTIVATIONS[activation],
            )
            for layer, activation in [*(linear_layers(net.body) or []), (last_layer(net), None)]
        ]
        self._layers = (_Layer * len(layers))(*layers)

    def plan_and_inputs(self, inputs: Any, num_steps: int) -> tuple[Any, Any, list[Tensor]]:
        rows = inputs.obs[:, -num_steps:] if isinstance(inputs, Chunks) else inputs
        rows = plain(rows, torch.float32)
        plan = _FeedForward(len(self._layers), self._layers, num_steps)
        return plan, pointer(rows), [rows]


def plain(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor as C reads it: numbers of that type, one after the other."""
    return tensor.to(dtype).contiguous()


def address(tensor: Tensor) -> int:
    """Where a tensor's numbers begin."""
    return tensor.data_ptr()


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    """The same as an argument."""
    return ctypes.c_void_p(tensor.data_ptr())


class _Net(ctypes.Structure):
    _fields_ = [
        ("num_parameters", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("vector", "grad", "exp_avg", "exp_avg_sq")),
        *((name, ctypes.c_double) for name in ("lr", "beta1", "beta2", "epsilon", "grad_clip")),
        ("num_steps", ctypes.c_int64),
    ]


class _Layer(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64) for name in ("inputs", "outputs", "weight", "bias", "activation")
    ]


class _FeedForward(ctypes.Structure):
    _fields_ = [
        ("num_layers", ctypes.c_int64),
        ("layers", ctypes.POINTER(_Layer)),
        ("num_steps", ctypes.c_int64),
    ]


class _Batch(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int64),
        ("num_outputs", ctypes.c_int64),
        ("num_choices", ctypes.c_int64),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        *((name, ctypes.c_void_p) for name in ("mask", "actions", "action_logp", "dist_inputs")),
        ("advantages", ctypes.c_void_p),
        ("log_std", ctypes.c_int64),
        *((name, ctypes.c_double) for name in ("log_std_min", "log_std_max")),
        *((name, ctypes.c_double) for name in ("clip", "entropy_coeff", "kl_coeff")),
        ("targets", ctypes.c_void_p),
        ("outputs", ctypes.c_void_p),
        ("vf_clip", ctypes.c_double),
    ]
