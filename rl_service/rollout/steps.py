"""The steps of one call while they are sampled, and how they become rows of fragments.

Columns are preallocated as (T, E, ...). Every env has a row of its own that it writes next: as
long as no episode breaks off all are the same, and whole rows are written at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from ray.rllib.policy.sample_batch import SampleBatch

from custom_models.spaces import ActionSpec
from rl_service.rollout.fragments import ACTOR_INPUTS, LOSS_MASK, Columns
from rl_service.rollout.stepping import Array

Place = tuple[Any, Any]
"""Rows and envs of one step of B envs, to index (T, E, ...) with: (B,) each, or a row and all."""

_ALL = slice(None)
_CONTEXT = (SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.T, SampleBatch.EPS_ID)


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
        discrete = action_spec.kind == "discrete"
        self._columns: Columns = {
            SampleBatch.OBS: np.empty((*shape, obs_size), np.float32),
            SampleBatch.ACTIONS: (
                np.empty(shape, np.int64)
                if discrete
                else np.empty((*shape, action_spec.size), np.float32)
            ),
            SampleBatch.REWARDS: np.empty(shape, np.float32),
            SampleBatch.TERMINATEDS: np.empty(shape, np.bool_),
            SampleBatch.T: np.empty(shape, np.int64),
            SampleBatch.EPS_ID: np.empty(shape, np.int64),
            SampleBatch.ACTION_LOGP: np.empty(shape, np.float32),
            SampleBatch.ACTION_DIST_INPUTS: np.empty(
                (*shape, action_spec.num_dist_inputs), np.float32
            ),
            LOSS_MASK: np.ones(shape, np.bool_),
        }
        self._shape = shape
        self._row = 0  # that all envs write next
        self._rows: npt.NDArray[np.int64] | None = None  # (E,) of each, once they are apart
        self._finals: list[tuple[int, int, Array]] = []

    def next_place(self) -> Place | None:
        """Where the next step of all envs goes that lack steps; None if none does."""
        if self._rows is None:
            return (self._row, _ALL) if self._row < self._shape[0] else None
        envs = np.flatnonzero(self._rows < self._shape[0])
        return (self._rows[envs], envs) if len(envs) else None

    def write(self, place: Place, columns: Mapping[str, Array]) -> None:
        """Writes what the step at a place has in some columns, (B, ...) each."""
        for name, column in columns.items():
            self._columns[name][place] = column

    def write_inputs(self, place: Place, inputs: Array) -> None:
        """Writes (B, I) what the actor computed its distribution from, for actors that say it."""
        if ACTOR_INPUTS not in self._columns:
            shape = (*self._shape, inputs.shape[1])
            self._columns[ACTOR_INPUTS] = np.empty(shape, inputs.dtype)
        self._columns[ACTOR_INPUTS][place] = inputs

    def advance(self, place: Place) -> None:
        """The step at a place is whole."""
        if self._rows is None:
            self._row += 1
        else:
            self._rows[place[1]] += 1

    def take_back(self, envs: Array, num_steps: Array) -> Array:
        """Drops the last steps (B,) of some envs (B,), as far as they are here.

        Returns:
            (B,) Whether that was all that the env had here.
        """
        if self._rows is None:
            self._rows = np.full(self._shape[1], self._row)
        starts = np.maximum(self._rows[envs] - num_steps, 0)
        self._rows[envs] = starts
        nothing_left: Array = starts == 0
        return nothing_left

    def place_of(self, envs: Array) -> Place:
        """Where the next step of some envs (B,) goes, once they are apart."""
        assert self._rows is not None
        return self._rows[envs], envs

    def end_at_limit(self, envs: Array, obs: Array) -> None:
        """Keeps the observations (B, O) after the time limits that some envs (B,) reach now.

        To be called before that step is whole; their values bootstrap it.
        """
        rows = np.full(self._shape[1], self._row) if self._rows is None else self._rows
        self._finals += [(int(rows[e]), int(e), o) for e, o in zip(envs, obs, strict=True)]

    def lay_out(
        self, context: Sequence[Columns], cut: Array, obs: Array
    ) -> tuple[Columns, npt.NDArray[np.int64]]:
        """Rows of all fragments, env after env: context, then steps and final rows in order.

        Args:
            context: rows that each env's fragment begins with.
            cut: (C,) envs whose episode goes on after its last step here.
            obs: (E, O) the observations that it goes on from.

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
    """The last steps of an episode that goes on, for the next fragment.

    Args:
        columns: rows of all fragments.
        end: row after the last one of the episode's env.
        num_steps: how many; 0 gives no rows at all.
    """
    if num_steps == 0:
        return {}
    last = end - 1  # the cut's final row
    return {name: columns[name][last - num_steps : last].copy() for name in _CONTEXT}
