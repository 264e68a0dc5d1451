"""The layout in which experience travels: rows of fragments, each with its context once.

A *fragment* is what one env yields in one call: its rows lie in time order as

    context rows   up to K-1 earlier steps of the episode that the fragment goes on with
    step rows      the sampled steps (`loss_mask` true), possibly of several episodes
    final rows     one after each time limit and one at the fragment's cut: the observation whose
                   value bootstraps the step before it

Every step therefore travels once, whatever K is. A critic that needs no context asks for none,
and no context rows are made.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from ray.rllib.policy.sample_batch import SampleBatch

from custom_models.history import History
from custom_models.rllib_models import CONTEXT_ACTIONS, CONTEXT_OBS

LOSS_MASK = "loss_mask"
ACTOR_INPUTS = "actor_inputs"
"""What the actor computed its distribution from, where that is not the observation itself."""

COLUMNS = (
    SampleBatch.OBS,
    SampleBatch.ACTIONS,
    SampleBatch.REWARDS,
    SampleBatch.TERMINATEDS,
    SampleBatch.T,
    SampleBatch.EPS_ID,
    SampleBatch.ACTION_LOGP,
    SampleBatch.ACTION_DIST_INPUTS,
    LOSS_MASK,
)

Columns = dict[str, npt.NDArray[Any]]


def segment_ids(batch: Columns) -> npt.NDArray[np.int64]:
    """One id per unbroken stretch of an episode, (N,).

    Rows of the same episode that were shipped twice (as steps, then as context of a later
    fragment in the same batch) get different ids, so that no step sees another one twice.
    """
    episodes, t = batch[SampleBatch.EPS_ID], batch[SampleBatch.T]
    borders = (episodes[1:] != episodes[:-1]) | (t[1:] != t[:-1] + 1)
    return np.concatenate([[0], np.cumsum(borders)]).astype(np.int64)


def context_rows(batch: Columns, segments: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Marks the rows that are context, (N,): neither steps nor the end of their segment's steps."""
    mask = batch[LOSS_MASK].astype(bool)
    final = np.zeros_like(mask)
    final[1:] = ~mask[1:] & mask[:-1] & (segments[1:] == segments[:-1])
    context: npt.NDArray[np.bool_] = ~mask & ~final
    return context


def history_at(
    batch: Columns,
    segments: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    context_length: int,
) -> History:
    """What an actor of that context length would read at rows (R,)."""
    places = rows[:, None] + np.arange(1 - context_length, 1)  # (R, K)
    there = (places >= 0) & (segments[places.clip(0)] == segments[rows][:, None])
    places = places.clip(0)
    return History(
        batch[SampleBatch.OBS][places],
        batch[SampleBatch.ACTIONS][places[:, :-1]],
        there[:, :-1].sum(1),
    )


def rows_from_view(batch: SampleBatch, num_context_steps: int) -> SampleBatch:
    """Lays out one trajectory piece that RLlib's own sampler has collected.

    RLlib hands a policy one piece of one episode at a time. The context columns come from the
    model's view requirements, padded on the left where the episode is younger than K steps.

    Args:
        batch: T steps of one episode with `next_obs`.
        num_context_steps: K-1.

    Returns:
        The same piece as rows of a fragment.
    """
    first_t = int(batch[SampleBatch.T][0])
    num_context = min(num_context_steps, first_t)
    terminated = bool(batch[SampleBatch.TERMINATEDS][-1])
    num_steps, num_final = batch.count, 0 if terminated else 1
    columns: Columns = {}
    for name in (*COLUMNS, *([ACTOR_INPUTS] if ACTOR_INPUTS in batch else [])):
        steps = np.asarray(batch[name]) if name != LOSS_MASK else np.ones(num_steps, np.bool_)
        rows = np.zeros((num_context + num_steps + num_final, *steps.shape[1:]), steps.dtype)
        rows[num_context : num_context + num_steps] = steps
        columns[name] = rows
    if num_context:
        columns[SampleBatch.OBS][:num_context] = batch[CONTEXT_OBS][0][-num_context:]
        columns[SampleBatch.ACTIONS][:num_context] = batch[CONTEXT_ACTIONS][0][-num_context:]
    if num_final:
        columns[SampleBatch.OBS][-1] = batch[SampleBatch.NEXT_OBS][-1]
    start = first_t - num_context
    columns[SampleBatch.T] = np.arange(start, start + len(columns[LOSS_MASK]), dtype=np.int64)
    columns[SampleBatch.EPS_ID][:] = batch[SampleBatch.EPS_ID][0]
    return SampleBatch(columns)
