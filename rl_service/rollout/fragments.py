"""The layout in which experience travels: rows of fragments, each with its context once.

A *fragment* is what one env yields in one call. Its rows are in the order of time:

    context rows   up to K-1 earlier steps of the episode that the fragment continues
    step rows      the sampled steps (`loss_mask` true), possibly of several episodes
    final rows     one after each time limit and one at the fragment's cut: the observation whose
                   value bootstraps the step before it

A step therefore travels once, and again only as context of its episode's next fragment. Where no
net learns with a context, no context rows are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from ray.rllib.policy.sample_batch import SampleBatch

from custom_models.distributions import distribution
from custom_models.history import History
from custom_models.rllib_models import CONTEXT_ACTIONS, CONTEXT_OBS, CONTEXT_REWARDS
from custom_models.spaces import ActionSpec
from rl_service.rollout.stepping import Array

LOSS_MASK = "loss_mask"
ACTOR_INPUTS = "actor_inputs"
"""What the actor computed its distribution from, if not from the observation itself."""

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

    Rows of the same episode that travelled twice (as steps, then as context of a later
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
        columns[SampleBatch.REWARDS][:num_context] = batch[CONTEXT_REWARDS][0][-num_context:]
    if num_final:
        columns[SampleBatch.OBS][-1] = batch[SampleBatch.NEXT_OBS][-1]
    start = first_t - num_context
    columns[SampleBatch.T] = np.arange(start, start + len(columns[LOSS_MASK]), dtype=np.int64)
    columns[SampleBatch.EPS_ID][:] = batch[SampleBatch.EPS_ID][0]
    return SampleBatch(columns)


Place = tuple[Any, Any]
"""Rows and envs of one step of B envs, to index (T, E, ...) with: (B,) each, or a row and all."""

_ALL = slice(None)
_CONTEXT = (
    SampleBatch.OBS,
    SampleBatch.ACTIONS,
    SampleBatch.REWARDS,
    SampleBatch.T,
    SampleBatch.EPS_ID,
)


class Steps:
    """T steps of each of E envs.

    Args:
        num_steps: T.
        num_envs: E.
        obs_size: O.
        action_spec: the actions.
    """

    def __init__(
        self, num_steps: int, num_envs: int, obs_size: int, action_spec: ActionSpec
    ) -> None:
        shape = (num_steps, num_envs)
        self._columns: Columns = {
            SampleBatch.OBS: np.empty((*shape, obs_size), np.float32),
            SampleBatch.ACTIONS: np.empty((*shape, *action_spec.row_shape), action_spec.row_dtype),
            SampleBatch.REWARDS: np.empty(shape, np.float32),
            SampleBatch.TERMINATEDS: np.empty(shape, np.bool_),
            SampleBatch.T: np.empty(shape, np.int64),
            SampleBatch.EPS_ID: np.empty(shape, np.int64),
            SampleBatch.ACTION_DIST_INPUTS: np.empty(
                (*shape, action_spec.num_dist_inputs), np.float32
            ),
            LOSS_MASK: np.ones(shape, np.bool_),
        }
        self._shape = shape
        self._row = 0  # that all envs write next
        self._rows: npt.NDArray[np.int64] | None = None  # (E,) of each env, once they differ
        self._finals: list[tuple[int, int, Array]] = []

    def next_place(self) -> Place | None:
        """The place of the next step of all envs that need one; None if none does."""
        if self._rows is None:
            return (self._row, _ALL) if self._row < self._shape[0] else None
        envs = np.flatnonzero(self._rows < self._shape[0])
        return (self._rows[envs], envs) if len(envs) else None

    def write(self, place: Place, columns: Mapping[str, Array]) -> None:
        """Writes columns (B, ...) of the step at a place."""
        for name, column in columns.items():
            self._columns[name][place] = column

    def write_inputs(self, place: Place, inputs: Array) -> None:
        """Writes what the actor computed its distribution from, (B, I), if it reports that."""
        if ACTOR_INPUTS not in self._columns:
            shape = (*self._shape, inputs.shape[1])
            self._columns[ACTOR_INPUTS] = np.empty(shape, inputs.dtype)
        self._columns[ACTOR_INPUTS][place] = inputs

    def compute_log_probs(self, action_spec: ActionSpec) -> None:
        """Fills in the log-probabilities of all actions, in nats."""
        actions, dist_inputs = (
            torch.from_numpy(self._columns[name])
            for name in (SampleBatch.ACTIONS, SampleBatch.ACTION_DIST_INPUTS)
        )
        dist = distribution(action_spec, dist_inputs)
        self._columns[SampleBatch.ACTION_LOGP] = dist.log_prob(actions).numpy()

    def advance(self, place: Place) -> None:
        """Marks the step at a place as complete."""
        if self._rows is None:
            self._row += 1
        else:
            self._rows[place[1]] += 1

    def take_back(self, envs: Array, num_steps: Array) -> Array:
        """Drops the last steps (B,) of some envs (B,), as far as they are in this fragment.

        Returns:
            (B,) whether nothing of the env is left.
        """
        if self._rows is None:
            self._rows = np.full(self._shape[1], self._row)
        starts = np.maximum(self._rows[envs] - num_steps, 0)
        self._rows[envs] = starts
        nothing_left: Array = starts == 0
        return nothing_left

    def place_of(self, envs: Array) -> Place:
        """The place of the next step of some envs (B,), once their rows differ."""
        assert self._rows is not None
        return self._rows[envs], envs

    def end_at_limit(self, envs: Array, obs: Array) -> None:
        """Keeps the observations (B, O) after the time limits that some envs (B,) reach now.

        Call it before that step is complete; their values bootstrap it.
        """
        rows = np.full(self._shape[1], self._row) if self._rows is None else self._rows
        self._finals += [(int(rows[e]), int(e), o) for e, o in zip(envs, obs, strict=True)]

    def lay_out(
        self, context: Sequence[Columns], cut: Array, obs: Array
    ) -> tuple[Columns, npt.NDArray[np.int64]]:
        """Rows of all fragments, env after env: context, then steps and final rows in order.

        Args:
            context: rows that each env's fragment begins with.
            cut: (C,) envs whose episode continues after its last step here.
            obs: (E, O) the observations that it continues from.

        Returns:
            The columns, and (E,) the row after each env's last one.
        """
        num_steps, num_envs = self._shape
        closing = self._finals + [(num_steps - 1, int(e), obs[e]) for e in cut]
        closes = np.zeros((num_steps, num_envs), np.int64)
        after, owners = np.array([(i, e) for i, e, _ in closing], np.int64).reshape(-1, 2).T
        closes[after, owners] = 1
        num_context = np.array([len(c[SampleBatch.T]) if c else 0 for c in context])
        ends = np.cumsum(num_context + num_steps + closes.sum(0))  # of fragments, in rows
        starts = np.concatenate([[0], ends[:-1]])
        rows = starts + num_context + np.arange(num_steps)[:, None]  # (T, E) of the steps
        rows += closes.cumsum(0) - closes
        out: Columns = {}
        for name, column in self._columns.items():
            out[name] = np.zeros((int(ends[-1]), *column.shape[2:]), column.dtype)
            out[name][rows] = column
        for start, of_env in zip(starts, context, strict=True):
            for name, column in of_env.items():
                out[name][start : start + len(column)] = column
        if closing:
            final_rows = rows[after, owners] + 1
            out[SampleBatch.OBS][final_rows] = np.stack([o for _, _, o in closing])
            out[SampleBatch.T][final_rows] = self._columns[SampleBatch.T][after, owners] + 1
            out[SampleBatch.EPS_ID][final_rows] = self._columns[SampleBatch.EPS_ID][after, owners]
        return out, ends


def next_context(columns: Columns, end: int, num_steps: int) -> Columns:
    """The last steps of an episode that continues, for the next fragment.

    Args:
        columns: rows of all fragments.
        end: row after the last one of the episode's env.
        num_steps: how many; 0 gives no rows at all.
    """
    if num_steps == 0:
        return {}
    last = end - 1  # the cut's final row
    return {name: columns[name][last - num_steps : last].copy() for name in _CONTEXT}
