"""Cuts rows of fragments into chunks of equal length for one batched critic pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from custom_models.critic import PADDING_SEGMENT, Chunks

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ChunkPlan:
    """M chunks of P prefix rows and C rows whose values are asked for."""

    rows: IntArray
    """(M, P + C) row index of each place; clipped where a chunk reaches past the batch."""
    inside: npt.NDArray[np.bool_]
    """(M, P + C) false where the place stands for no row."""
    asked: npt.NDArray[np.bool_]
    """(M, C) whether the chunk is the one that answers for this row."""

    @property
    def num_values(self) -> int:
        """C."""
        return int(self.asked.shape[1])

    @property
    def asked_rows(self) -> IntArray:
        """(M, C) rows of the last C places."""
        return self.rows[:, -self.num_values :]


def plan_chunks(context: npt.NDArray[np.bool_], prefix_length: int, chunk_length: int) -> ChunkPlan:
    """Covers every row that is not context by exactly one chunk.

    Runs between context rows are cut into pieces of nearly equal length, so that a run slightly
    longer than `chunk_length` does not cost a whole extra chunk.

    Args:
        context: (N,) rows whose values nobody asks for.
        prefix_length: P, rows before a chunk's own that it can look back to.
        chunk_length: length to aim at.
    """
    num_rows = len(context)
    edges = np.flatnonzero(np.diff(np.concatenate([[True], context, [True]]).astype(np.int8)))
    begin, end = edges.reshape(-1, 2).T  # of runs
    num_pieces = np.maximum(1, np.round((end - begin) / chunk_length).astype(np.int64))
    run = np.repeat(np.arange(len(begin)), num_pieces)  # (M,) of each piece
    place = np.arange(len(run)) - np.repeat(num_pieces.cumsum() - num_pieces, num_pieces)
    cuts = begin[run] + np.stack([place, place + 1]) * ((end - begin) / num_pieces)[run]
    start, stop = np.round(cuts).astype(np.int64)
    lengths = (stop - start)[:, None]  # (M, 1)
    longest = int(lengths.max())
    rows = start[:, None] + np.arange(-prefix_length, longest)  # (M, P + C)
    inside = (rows >= 0) & (rows < num_rows)
    asked = np.arange(longest) < lengths  # (M, C)
    return ChunkPlan(rows.clip(0, num_rows - 1), inside, asked)


def gather_chunks(
    plan: ChunkPlan, obs: Tensor, actions: Tensor, timesteps: Tensor, segments: Tensor
) -> Chunks:
    """Collects the rows of all chunks, from columns (N, ...) to (M, P + C, ...)."""
    index = torch.from_numpy(plan.rows).to(obs.device)
    inside = torch.from_numpy(plan.inside).to(obs.device)
    return Chunks(
        obs=obs[index],
        actions=actions[index],
        timesteps=timesteps[index],
        segment_ids=torch.where(inside, segments[index], PADDING_SEGMENT),
    )
