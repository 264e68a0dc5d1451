"""How much arithmetic the nets need, counted by hand: no torch, no Ray.

A product of (m, k) and (k, n) counts 2·m·k·n; norms, activations and softmax are left out. A
backward pass costs twice the forward pass.

The GPT-2 critic, for a chunk of P context steps and V values, T = P + V, two tokens a step, and
m_i = min(i + 1, K) steps in reach of step i:

    embeddings         2·C·(O + A)·T                       (A = 0 for discrete actions: a lookup)
    layers 1 … L-1     24·C²·2T + 4·C·Σ_T (4·m_i - 1)      all tokens; both tokens of a step attend
    layer L            8·C²·T + 20·C²·V + 4·C·Σ_V (2·m_i - 1)   keys of all, queries of V states
    value head         2·C·V

This is what the function needs; the pass itself does more where a block of queries also meets
keys that the mask then hides.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

FORWARD_AND_BACKWARD = 3
"""In units of a forward pass."""


class GPT2Size(NamedTuple):
    """What decides the arithmetic of a GPT-2 critic."""

    context_length: int
    n_layer: int
    n_embd: int
    observation_size: int
    action_size: int
    """0 for discrete actions."""


def gpt2_forward(size: GPT2Size, num_context: int, num_values: int) -> float:
    """FLOP of one chunk's values: P = `num_context`, V = `num_values`."""
    width, steps = size.n_embd, num_context + num_values
    reach = [min(i + 1, size.context_length) for i in range(steps)]
    full = 24 * width**2 * 2 * steps + 4 * width * sum(4 * m - 1 for m in reach)
    asked = sum(2 * m - 1 for m in reach[-num_values:])
    last = 8 * width**2 * steps + 20 * width**2 * num_values + 4 * width * asked
    embeddings = 2 * width * (size.observation_size + size.action_size) * steps
    return embeddings + (size.n_layer - 1) * full + last + 2 * width * num_values


def paper_forward(size: GPT2Size) -> float:
    """FLOP of one value in the paper's way: a whole window of K steps, every token in every layer.

    2·C·(O + A)·K + L·(24·C²·2K + 4·C·(2K)²) + 2·C
    """
    width, tokens = size.n_embd, 2 * size.context_length
    layer = 24 * width**2 * tokens + 4 * width * tokens**2
    embeddings = 2 * width * (size.observation_size + size.action_size) * size.context_length
    return embeddings + size.n_layer * layer + 2 * width


class LlamaSize(NamedTuple):
    """What decides the arithmetic of a trunk of the Llama kind."""

    n_layer: int
    n_embd: int
    n_head: int
    n_key_value_head: int
    n_inner: int


def llama_forward(size: LlamaSize, num_tokens: int) -> float:
    """FLOP of one prompt of T tokens, without the vocabulary; G = key and value heads / heads.

    L·(2·C·(2·C + 2·C·G + 3·N)·T + 4·C·T·(T + 1)/2)
    """
    width, tokens = size.n_embd, num_tokens
    shared = width * size.n_key_value_head / size.n_head
    products = 2 * width * (2 * width + 2 * shared + 3 * size.n_inner) * tokens
    return size.n_layer * (products + 2 * width * tokens * (tokens + 1))


def mlp_forward(sizes: Sequence[int]) -> float:
    """FLOP of one row through layers of these widths, inputs and outputs included."""
    return sum(2.0 * m * n for m, n in pairwise(sizes))
