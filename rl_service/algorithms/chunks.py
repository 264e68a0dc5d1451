"""Cuts fragments into chunks, the sequences that a net with a context learns from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from custom_models.interfaces import PADDING_SEGMENT, Chunks

if TYPE_CHECKING:
    from rl_service.algorithms.policy import ActorCriticPolicy

IntArray = npt.NDArray[np.int64]


def critic_chunk_length(policy: ActorCriticPolicy) -> int:
    """Values of the critic to aim at in a chunk: 1 without context, for single steps then."""
    num_context = policy.net.config.num_context_steps
    minibatch: int = policy.algorithm.env_steps_per_critic_step
    return 1 if num_context == 0 else _chunk_length(policy, num_context, minibatch)


def actor_chunk_length(policy: ActorCriticPolicy) -> int:
    """Steps to aim at in a chunk of an actor that reads chunks."""
    num_context = policy.net.actor.context_length - 1
    return _chunk_length(policy, num_context, policy.algorithm.env_steps_per_actor_step)


def _chunk_length(policy: ActorCriticPolicy, num_context: int, minibatch: int) -> int:
    """A chunk also passes over K-1 steps of context, so it has half as many steps at least.

    A step then costs about three at most, where fragments and minibatches are long enough.
    """
    half = -(-num_context // 2)
    return min(minibatch, max(1, minibatch // policy.minibatch_chunks, half))


@dataclass(frozen=True)
class ChunkPlan:
    """M chunks of P prefix rows and C rows whose values are needed."""

    rows: IntArray
    """(M, P + C) row index of each place, clipped at the ends of the batch."""
    inside: npt.NDArray[np.bool_]
    """(M, P + C) false if the place has no row."""
    asked: npt.NDArray[np.bool_]
    """(M, C) whether the value of this row comes from this chunk."""

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
        context: (N,) rows whose values are not needed.
        prefix_length: P, rows before a chunk's own that it can look back to.
        chunk_length: length to aim at.
    """
    num_rows = len(context)
    edges = np.flatnonzero(np.diff(np.concatenate([[True], context, [True]]).astype(np.int8)))
    begin, end = edges.reshape(-1, 2).T  # of runs
    # Where an episode ends with its fragment, the next fragment's steps follow in the same run.
    chunk_length = min(chunk_length, int(np.median(end - begin)))
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
    plan: ChunkPlan,
    obs: Tensor,
    actions: Tensor,
    rewards: Tensor,
    timesteps: Tensor,
    segments: Tensor,
) -> Chunks:
    """Collects the rows of all chunks, from columns (N, ...) to (M, P + C, ...)."""
    index = torch.from_numpy(plan.rows).to(obs.device)
    inside = torch.from_numpy(plan.inside).to(obs.device)
    return Chunks(
        obs=obs[index],
        actions=actions[index],
        rewards=rewards[index],
        timesteps=timesteps[index],
        segment_ids=torch.where(inside, segments[index], PADDING_SEGMENT),
    )
