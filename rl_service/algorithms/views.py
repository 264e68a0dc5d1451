"""Both views of a learner's batch: rows for the actor, sequences for the critic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from torch import Tensor

from custom_models.critic import Chunks
from rl_service.algorithms.minibatch_step import map_columns


class ActorRows(NamedTuple):
    """The step rows, in any order: what the actor's loss needs. N rows."""

    inputs: Tensor
    """(N, I) what the actor computes its distribution from: see `custom_models.actor`."""
    actions: Tensor
    """(N,) or (N, A)"""
    action_logp: Tensor
    """(N,) under the policy that sampled."""
    dist_inputs: Tensor
    """(N, num_dist_inputs) of the policy that sampled."""
    advantages: Tensor
    """(N,)"""


class CriticChunks(NamedTuple):
    """The same steps as sequences: what the critic's loss needs. M chunks, C values each."""

    chunks: Chunks
    loss_mask: Tensor
    """(M, C) true where a step's value is fitted."""
    targets: Tensor
    """(M, C) value targets in units of the return."""
    outputs: Tensor
    """(M, C) values before the update, in the critic's own units."""


class LearnerBatch(NamedTuple):
    """Both views of one batch."""

    actor: ActorRows
    critic: CriticChunks


Batch = TypeVar("Batch", ActorRows, CriticChunks)


def shuffled(batch: Batch, order: Tensor, num_minibatches: int) -> Iterator[Batch]:
    """Minibatches of nearly equal size that cover the batch once.

    The batch is put in order once; minibatches are then views.

    Args:
        batch: columns of N items.
        order: (N,) permutation.
        num_minibatches: at most N.
    """
    permuted = map_columns(batch, lambda column: column.index_select(0, order))
    sizes = [len(part) for part in order.tensor_split(num_minibatches)]
    start = 0
    for size in sizes:
        piece = slice(start, start + size)
        yield map_columns(permuted, lambda column: column[piece])  # noqa: B023, used at once
        start += size
