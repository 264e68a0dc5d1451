"""Nets with inputs on the device, what they need at least, and the ways to run them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from custom_models.configs import MLPConfig
from custom_models.distributions import distribution
from custom_models.interfaces import Chunks
from custom_models.nets import build_actor_critic
from tests.benchmarks import flops
from tests.benchmarks.gpu.bounds import Need, gpt2_activations, mlp_activations, mlp_flop
from tests.benchmarks.gpu.peaks import DEVICE
from tests.benchmarks.nets import (
    ACTIONS,
    CONTEXT_LENGTH,
    NUM_ACTIONS,
    OBSERVATION_SIZE,
    PAPER_CRITIC,
    build_critic,
    random_chunks,
)

CHUNK_VALUES = 128


class Variant(NamedTuple):
    """One way to run a net."""

    dtype: torch.dtype
    compiled: bool


VARIANTS = {
    "float32": Variant(torch.float32, False),
    "bf16 autocast": Variant(torch.bfloat16, False),
    "float32, compiled": Variant(torch.float32, True),
    "bf16 autocast, compiled": Variant(torch.bfloat16, True),
}
"""Compiled: `torch.compile` with CUDA graphs, which spare the launches of small kernels."""


class _Losses(nn.Module):
    """Log-likelihood of the actor and squared error of the critic on single steps."""

    def __init__(self) -> None:
        super().__init__()
        self.net = build_actor_critic(MLPConfig(), OBSERVATION_SIZE, ACTIONS)

    def forward(self, chunks: Chunks, targets: Tensor) -> Tensor:
        assert self.net.critic is not None
        dist = distribution(ACTIONS, self.net.actor(chunks.obs[:, 0]))
        values: Tensor = self.net.critic(chunks, 1)
        return (values - targets).square().mean() - dist.log_prob(chunks.actions[:, 0]).mean()


class _CriticLoss(nn.Module):
    """Squared error of the GPT-2 critic on chunks."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = build_critic(PAPER_CRITIC)

    def forward(self, chunks: Chunks, targets: Tensor) -> Tensor:
        values: Tensor = self.critic(chunks, targets.shape[1])
        return (values - targets).square().mean()


class Case:
    """One net and one batch."""

    def __init__(self, net: str, num_values: int) -> None:
        torch.manual_seed(0)
        is_mlp = net == "mlp"
        self._loss = (_Losses() if is_mlp else _CriticLoss()).to(DEVICE)
        shape = (num_values, 1) if is_mlp else (num_values // CHUNK_VALUES, CHUNK_VALUES)
        context = 0 if is_mlp else CONTEXT_LENGTH - 1
        chunks = random_chunks(shape[0], context + shape[1])
        self._inputs = Chunks(*(column.to(DEVICE) for column in chunks))
        self._targets = torch.randn(shape, device=DEVICE)
        self.need = self._need(num_values, is_mlp)

    def _need(self, num_values: int, is_mlp: bool) -> Need:
        parameters = sum(p.numel() for p in self._loss.parameters() if p.requires_grad)
        inputs = sum(x.numel() * x.element_size() for x in (*self._inputs, self._targets))
        if is_mlp:
            flop = mlp_flop(num_values, OBSERVATION_SIZE, NUM_ACTIONS)
            return Need(flop, parameters, inputs, mlp_activations(num_values))
        config = PAPER_CRITIC
        size = flops.GPT2Size(
            CONTEXT_LENGTH, config.n_layer, config.n_embd, OBSERVATION_SIZE, action_size=0
        )
        num_chunks, context = num_values // CHUNK_VALUES, CONTEXT_LENGTH - 1
        flop = num_chunks * flops.gpt2_forward(size, context, CHUNK_VALUES)
        activations = gpt2_activations(size, num_chunks, context, CHUNK_VALUES)
        return Need(flops.FORWARD_AND_BACKWARD * flop, parameters, inputs, activations)

    def step(self, variant: Variant) -> Callable[[], None]:
        """A forward and backward pass; gradients are made anew each time."""
        loss: Callable[[Chunks, Tensor], Tensor] = self._loss
        if variant.compiled:
            loss = torch.compile(self._loss, mode="reduce-overhead", dynamic=False)
        is_bf16 = variant.dtype == torch.bfloat16

        def run() -> None:
            self._loss.zero_grad(set_to_none=True)
            torch.compiler.cudagraph_mark_step_begin()
            with torch.autocast(DEVICE, torch.bfloat16, enabled=is_bf16):
                value = loss(self._inputs, self._targets)
            value.backward()

        return run
