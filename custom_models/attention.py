"""Attention without weights: which tokens see which, how time turns them, and what is kept of them.

Tokens stand in steps: a step has one for its state and, if the history holds actions, one for its
action.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from custom_models.interfaces import PADDING_SEGMENT

BLOCK_STEPS = 32
"""Steps whose queries share one window of keys. Smaller blocks waste less on keys out of reach,
larger ones fill matrix products better."""

_DROPOUT_LEVELS = 1 << 16


def split_reach(context_length: int, num_layers: int) -> tuple[int, ...]:
    """Steps that each layer looks back, its own included, so that all together look back K.

    Layer l adds k_l - 1 steps to what the layers before it have seen: the sum over the layers of
    k_l - 1 is K - 1. The split is even; what is left over goes to the first layers.
    """
    each, left = divmod(context_length - 1, num_layers)
    return tuple(1 + each + (layer < left) for layer in range(num_layers))


class Band(NamedTuple):
    """Which tokens of S steps the tokens of the last R of them see, in N blocks of b steps."""

    visible: Tensor
    """(B * N, 1, r, w) whether query r of a block sees key w of the block's window."""
    num_blocks: int
    """N"""
    step: int
    """Tokens from a block's window to the next one's."""

    def windows(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Cuts tokens into blocks and their windows.

        Args:
            q: (B, R', H, D) queries.
            k: (B, S', H, D) keys.
            v: (B, S', H, D) values.

        Returns:
            (B * N, r, H, D) and twice (B * N, w, H, D).
        """
        queries, window = self.visible.shape[2:]
        if self.num_blocks == 1:
            return q, k[:, -window:], v[:, -window:]
        q = _last(q, self.num_blocks * queries).unflatten(1, (self.num_blocks, queries))
        k, v = (
            _last(y, window + (self.num_blocks - 1) * self.step)
            .unfold(1, window, self.step)  # (B, N, H, D, w)
            .permute(0, 1, 4, 2, 3)
            .flatten(0, 1)
            for y in (k, v)
        )
        return q.flatten(0, 1), k, v


def band(
    segment_ids: Tensor, reach: int, num_rows: int, tokens_per_step: int, *, states_only: bool
) -> Band:
    """Makes the mask of a layer.

    A token of step i sees the tokens of steps i-k+1 … i of its own segment, up to and including
    itself: the state token of step i does not see the action of step i. Padding sees itself
    alone, so that no row is empty.

    Args:
        segment_ids: (B, S) episode of each step.
        reach: k.
        num_rows: R, the last steps, whose tokens are the queries.
        tokens_per_step: 2 with actions, 1 without.
        states_only: whether the queries are state tokens alone.
    """
    num_steps, device = segment_ids.shape[1], segment_ids.device
    block = min(num_rows, BLOCK_STEPS)
    num_blocks = -(-num_rows // block)
    window = block + reach - 1
    if num_blocks == 1:
        window = min(window, num_steps)
    keys = _last(segment_ids, window + (num_blocks - 1) * block, PADDING_SEGMENT)
    queries = keys[:, -num_blocks * block :].unflatten(1, (num_blocks, block))[..., None]
    keys = keys.unfold(1, window, block)[:, :, None]  # (B, N, 1, w); queries: (B, N, b, 1)
    age = torch.arange(window - block, window, device=device)[:, None]
    age = age - torch.arange(window, device=device)  # (b, w) steps from key to query
    near = (queries == keys) & (queries != PADDING_SEGMENT) & (age >= 0) & (age < reach)
    visible = near | (age == 0)  # (B, N, b, w)
    if tokens_per_step == 2:
        of_states = torch.stack([visible, visible & (age > 0)], -1).flatten(-2)  # (B, N, b, 2w)
        if states_only:
            visible = of_states
        else:
            of_actions = visible.repeat_interleave(2, -1)
            visible = torch.stack([of_states, of_actions], 3).flatten(2, 3)  # (B, N, 2b, 2w)
    return Band(visible.flatten(0, 1)[:, None], num_blocks, tokens_per_step * block)


def _last(x: Tensor, length: int, fill: float = 0.0) -> Tensor:
    """The last entries along dimension 1, filled on the left if there are too few."""
    missing = length - x.shape[1]
    if missing <= 0:
        return x[:, -length:]
    return F.pad(x, (0, 0) * (x.dim() - 2) + (missing, 0), value=fill)


def rotations(steps: Tensor, head_size: int, context_length: int) -> Tensor:
    """Rotations of each pair of a head's features, so that scores depend on the steps between.

    Rotary positions (arXiv 2104.09864), slowed down to the context: pair i of h turns by
    K^(-i / h) radians a step. A head of one pair cannot tell steps apart that are 6.3 apart.

    Args:
        steps: (...,) integers, from wherever one counts.
        head_size: D.
        context_length: K.

    Returns:
        (..., 1, D/2) complex numbers of length 1.
    """
    half = head_size // 2
    speeds = float(context_length) ** -(torch.arange(half, device=steps.device) / half)
    angles = steps.double()[..., None, None] * speeds  # float32 is too coarse after 1,000 steps
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Turns neighbouring features of tokens (B, S, H, D) by (S, 1, D/2), or alike."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2)


def attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float, p: float) -> Tensor:
    """Softmax attention.

    Args:
        q: (G, H, r, D) queries.
        k: (G, H, w, D) keys.
        v: (G, H, w, D) values.
        visible: (G, 1, r, w) whether a query sees a key; each sees one at least.
        scale: of the scores.
        p: dropout of the attention weights, 0 for none.

    Returns:
        (G, H, r, D).
    """
    # On a GPU in float32 plain matrix products are faster here than torch's fused kernel, which
    # cannot be differentiated forward anywhere.
    products = not torch.is_autocast_enabled("cuda") if q.is_cuda else p > 0.0
    if not products and forward_ad.unpack_dual(q).tangent is None:
        return F.scaled_dot_product_attention(q, k, v, visible, dropout_p=p, scale=scale)
    scores = (q * scale) @ k.transpose(-1, -2)
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return (dropout(weights, p) if p else weights) @ v


def dropout(x: Tensor, p: float) -> Tensor:
    """Zeroes entries with probability p and scales the others by 1 / (1 - p).

    On a CPU, torch's dropout draws one number per entry, which costs more than the attention
    that it is applied to; here one 64-bit number serves four entries, and p is rounded to 1/65536.
    """
    if x.is_cuda:
        return F.dropout(x, p)
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64)
    words.random_(-(1 << 63), None)  # all 64 bits
    numbers = words.view(torch.int16)[: x.numel()].view(x.shape)
    keep = (numbers >= round(p * _DROPOUT_LEVELS) - _DROPOUT_LEVELS // 2).to(x.dtype)
    return x * keep.mul_(1.0 / (1.0 - p))


class Ring:
    """Keys and values of one layer for the last steps of E envs that step together.

    A new step overwrites the oldest one, so nothing is moved.

    Args:
        reach: k, steps that a token looks back, its own included.
        tokens_per_step: n.
    """

    def __init__(self, reach: int, tokens_per_step: int) -> None:
        self._reach, self._per_step = reach, tokens_per_step
        # An action is known a step later, and then looks back k steps from there.
        self._size = reach + tokens_per_step - 1
        # Any R of these in a row are the ages of the slots: see `write`.
        age = torch.arange(self._size).flip(0).repeat(2)  # (2R,)
        ages = age[None, :, None]  # of queries, slots, keys of a slot
        if tokens_per_step == 2:
            unknown = torch.where(age > 0, age, self._size)  # its action, and what came after it
            of_action = torch.stack([unknown, unknown], -1)
            ages = torch.stack([of_action, torch.stack([age, unknown], -1)])
        self._ages = ages  # (n, 2R, n)

    def fill(self, k: Tensor, v: Tensor, num_steps: int) -> None:
        """Takes as many as fit of steps … T-1.

        Args:
            k: (E, S*n, H, D) keys of the last S of them.
            v: (E, S*n, H, D) values.
            num_steps: T.
        """
        kept = min(self._size, k.shape[1] // self._per_step)
        slots = torch.arange(num_steps - kept, num_steps, device=k.device) % self._size
        self._keys, self._values = (self._filled(y, slots) for y in (k, v))
        self._ages = self._ages.to(k.device)

    def _filled(self, y: Tensor, slots: Tensor) -> Tensor:
        y = y[:, -len(slots) * self._per_step :].transpose(1, 2)  # (E, H, s*n, D)
        ring = y.new_zeros(*y.shape[:2], self._size, self._per_step, y.shape[3])
        ring[:, :, slots] = y.unflatten(2, (-1, self._per_step))
        return ring  # (E, H, R, n, D)

    def write(
        self, k: Tensor, v: Tensor, step: int, num_earlier: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Takes a step's state, and the action before it if the history holds actions.

        Args:
            k: (E, n, H, D) keys, the action's first.
            v: (E, n, H, D) values.
            step: its number, one more than the last one's.
            num_earlier: (E,) steps before it that are of the same episode, as far as its history
                goes.

        Returns:
            Keys and values (E, H, R*n, D), and (E, 1, n, R*n) which the tokens see.
        """
        slot = step % self._size
        for ring, y in ((self._keys, k), (self._values, v)):
            ring[:, :, slot, 0] = y[:, -1]
            if self._per_step == 2:
                ring[:, :, slot - 1, 1] = y[:, 0]
        first = self._size - 1 - slot
        ages = self._ages[:, first : first + self._size].flatten(1)  # (n, R*n) of each key
        oldest = num_earlier.clamp(max=self._reach - 1)[:, None]  # (E, 1)
        if self._per_step == 2:  # an action sees itself even where no step was before
            of_action = num_earlier.clamp(1, self._reach)[:, None]
            oldest = torch.cat([of_action, oldest], 1)
        visible = ages <= oldest[:, :, None]  # (E, n, R*n)
        return self._keys.flatten(2, 3), self._values.flatten(2, 3), visible[:, None]
