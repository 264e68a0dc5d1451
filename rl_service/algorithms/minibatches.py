"""Minibatches of a batch, and the part of each that a learner takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from rl_service.algorithms.peers import Peers

Batch = TypeVar("Batch")


def map_columns(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Applies `change` to every column of nested named tuples; one may be None."""
    if batch is None:
        return None
    if isinstance(batch, tuple):
        return type(batch)(*(map_columns(column, change) for column in batch))
    return change(batch)


def shuffled(batch: Batch, order: Tensor, num_minibatches: int) -> Iterator[Batch]:
    """Minibatches of nearly equal size that cover the batch once.

    Args:
        batch: nested named tuples of N rows.
        order: (N,) permutation.
        num_minibatches: at most N; a single one is the batch as it is.
    """
    if num_minibatches == 1:
        yield batch
        return
    yield from _pieces(batch, order.tensor_split(num_minibatches))


def _pieces(batch: Batch, rows: Sequence[Tensor]) -> Iterator[Batch]:
    """These rows of a batch; it is put in order once, and pieces are then views."""
    order = torch.cat(tuple(rows))
    permuted = map_columns(batch, lambda column: column.index_select(0, order))
    start = 0
    for part in rows:
        piece = slice(start, start + len(part))
        yield map_columns(permuted, lambda column: column[piece])  # noqa: B023, used at once
        start = piece.stop


def own_parts(
    batch: Any, order: Tensor, num_minibatches: int, peers: Peers
) -> Iterator[tuple[Any, Tensor]]:
    """This learner's part of each minibatch, and its weight in the mean over the minibatch.

    A mean over the steps of the part, times its share of the steps, summed over all learners, is
    the mean over the steps of the minibatch. A learner that has no row takes one, with weight 0.

    Args:
        batch: `ActorRows` or `CriticChunks` of N rows.
        order: (N,) permutation.
        num_minibatches: at most N.
        peers: the learners.
    """
    steps = batch.steps_per_row  # (N,)
    rows, weights = [], []
    for minibatch in order.tensor_split(num_minibatches):
        own = peers.part(minibatch)
        weights.append(steps[own].sum() / steps[minibatch].sum().clamp(min=1))
        rows.append(own if len(own) else minibatch[:1])
    yield from zip(_pieces(batch, rows), weights, strict=True)


def own_part(batch: Any, peers: Peers) -> tuple[Any, Tensor | float]:
    """This learner's part of a whole batch, and its weight, as `own_parts`."""
    if peers.is_alone:
        return batch, 1.0
    steps = batch.steps_per_row
    return next(own_parts(batch, torch.arange(len(steps), device=steps.device), 1, peers))


def all_columns(batch: Any) -> list[Tensor]:
    """The columns of nested named tuples, one after the other."""
    if batch is None:
        return []
    if isinstance(batch, Tensor):
        return [batch]
    return [column for part in batch for column in all_columns(part)]
