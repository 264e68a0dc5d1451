"""One minibatch of values through each critic, forward and backward, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from custom_models.configs import GPT2CriticConfig, MLPConfig
from rl_service.runtime.process import prepare_process
from tests.benchmarks.nets import (
    CONTEXT_LENGTH,
    NUM_ACTIONS,
    OBSERVATION_SIZE,
    PAPER_CRITIC,
    build_critic,
    random_chunks,
)
from tests.benchmarks.subjects.paper_critic import PaperCritic

MATMUL_SIZE = 1024


def _paper(**changes: Any) -> GPT2CriticConfig:
    return PAPER_CRITIC.model_copy(update=changes)


class CriticPasses:
    """The same 128 values of one long episode, asked of each critic."""

    def __init__(self, num_values: int) -> None:
        prepare_process(1)  # as the learner does
        torch.manual_seed(0)
        self.num_values = num_values
        self._passes: dict[str, Callable[[], Tensor]] = {
            "paper": self._paper(),
            "window": self._ours(_paper(attention="window")),
            "window, dropout 0.5": self._ours(_paper(attention="window", dropout=0.5)),
            "approximate": self._ours(PAPER_CRITIC),
            "approximate, dropout 0.5": self._ours(_paper(dropout=0.5)),
            "mlp": self._ours(MLPConfig()),
        }
        self._matrix = torch.randn(MATMUL_SIZE, MATMUL_SIZE)

    def close(self) -> None:
        self._passes.clear()

    def seconds_per_pass(self, name: str, passes: int) -> float:
        """Seconds of a forward and backward pass."""
        run = self._passes[name]
        started = time.perf_counter()
        for _ in range(passes):
            run().backward()
        return (time.perf_counter() - started) / passes

    def matmul_flop_per_s(self, products: int) -> float:
        """FLOP a second of a large float32 matrix product on the same core."""
        started = time.perf_counter()
        for _ in range(products):
            torch.mm(self._matrix, self._matrix)
        return products * 2 * MATMUL_SIZE**3 / (time.perf_counter() - started)

    def _ours(self, config: GPT2CriticConfig | MLPConfig) -> Callable[[], Tensor]:
        """One chunk, as the learner cuts it; single steps for the MLP."""
        critic = build_critic(config)
        if isinstance(config, MLPConfig):
            chunks, num_values = random_chunks(self.num_values, 1), 1
        else:
            chunks = random_chunks(1, CONTEXT_LENGTH - 1 + self.num_values)
            num_values = self.num_values
        targets = torch.randn(len(chunks.obs), num_values)

        def loss() -> Tensor:
            values: Tensor = critic(chunks, num_values)
            return F.mse_loss(values, targets)

        return loss

    def _paper(self) -> Callable[[], Tensor]:
        critic = PaperCritic(OBSERVATION_SIZE, NUM_ACTIONS)
        windows = random_chunks(self.num_values, CONTEXT_LENGTH)
        mask, targets = torch.ones_like(windows.timesteps), torch.randn(self.num_values)

        def loss() -> Tensor:
            values: Tensor = critic(windows.obs, windows.actions, windows.timesteps, mask)
            return F.mse_loss(values, targets)

        return loss
