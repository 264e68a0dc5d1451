"""The arithmetic that the speed tables state, against counts by hand and by torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from custom_models.configs import GPT2CriticConfig, MLPConfig
from tests.benchmarks import flops
from tests.benchmarks.nets import OBSERVATION_SIZE, PAPER_CRITIC, build_critic, random_chunks


def counted(config: GPT2CriticConfig | MLPConfig, num_steps: int, num_values: int) -> int:
    critic, chunks = build_critic(config), random_chunks(1, num_steps)
    # torch counts the products of attention, and not its fused kernel on a CPU.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        critic(chunks, num_values)
    total: int = counter.get_total_flops()
    return total


def test_mlp_flop_is_what_torch_counts() -> None:
    sizes = (OBSERVATION_SIZE, 64, 64, 1)
    assert flops.mlp_forward(sizes) == 2 * (8 * 64 + 64 * 64 + 64)
    assert counted(MLPConfig(), 1, 1) == flops.mlp_forward(sizes)


def test_gpt2_flop_of_one_step_is_what_torch_counts() -> None:
    size = flops.GPT2Size(1, 1, 64, OBSERVATION_SIZE, action_size=0)
    config = GPT2CriticConfig(context_length=1, n_layer=1, history_actions=True)
    hidden = 4 * 64  # the state's query meets its own action's key, which the mask then hides
    assert counted(config, 1, 1) == flops.gpt2_forward(size, 0, 1) + hidden


@pytest.mark.parametrize("n_layer", [1, 2, 4])
def test_one_pass_does_at_most_half_more_than_the_function_needs(n_layer: int) -> None:
    size = flops.GPT2Size(64, n_layer, 64, OBSERVATION_SIZE, action_size=0)
    config = PAPER_CRITIC.model_copy(update={"n_layer": n_layer})
    need = flops.gpt2_forward(size, 63, 128)
    assert need <= counted(config, 63 + 128, 128) <= 1.5 * need
