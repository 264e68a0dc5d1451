"""The least that a forward and backward pass can move, beside the arithmetic of `flops`.

Counted once each: parameters (float32) read forward, read backward, gradients written; inputs
read forward and backward; and the activations that the backward pass needs written and read:

    MLP         the outputs of the hidden layers, of actor and critic
    GPT-2       per token the embedding C and, in layers 1 … L-1, 10·C: inputs of the three
                projections (3·C), queries, keys and values (3·C), the wide layer (4·C);
                in layer L 3·C per token (its norm, keys, values) and 7·C per value asked for
"""

from __future__ import annotations

from typing import NamedTuple

from tests.benchmarks import flops

FLOAT32_BYTES = 4


class Need(NamedTuple):
    """What one forward and backward pass needs at least."""

    flop: float
    num_parameters: int
    input_bytes: int
    activations: float
    """Numbers that the forward pass leaves for the backward pass."""

    def bytes(self, activation_bytes: int) -> float:
        """Bytes to move, with activations of so many bytes each."""
        parameters = 3 * FLOAT32_BYTES * self.num_parameters
        return parameters + 2 * self.input_bytes + 2 * activation_bytes * self.activations


def mlp_flop(num_values: int, observation_size: int, num_actions: int) -> float:
    """FLOP of actor and critic, forward and backward."""
    actor = flops.mlp_forward((observation_size, 64, 64, num_actions))
    critic = flops.mlp_forward((observation_size, 64, 64, 1))
    return flops.FORWARD_AND_BACKWARD * num_values * (actor + critic)


def mlp_activations(num_values: int) -> float:
    """Two hidden layers of 64 in each net."""
    return num_values * 2 * (64 + 64)


def gpt2_activations(size: flops.GPT2Size, num_chunks: int, num_context: int, num: int) -> float:
    """Of chunks with `num_context` steps before `num` values each."""
    tokens = 2 * (num_context + num)
    full = (1 + 10 * (size.n_layer - 1)) * tokens
    return num_chunks * size.n_embd * (full + 3 * tokens + 7 * num)
