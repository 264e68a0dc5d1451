"""Requests that arrive together go through the net together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from custom_models.history import History
from custom_models.spaces import FloatArray
from rl_service.policies.observing import Mask
from rl_service.policies.runner import Actions, PolicyRunner


class _Item(NamedTuple):
    obs: FloatArray
    deterministic: bool
    history: History | None
    mask: Mask | None
    answer: asyncio.Future[Actions]


class Batcher:
    """Answers requests of one policy, as many at once as there are.

    No request waits for others to come: an idle net takes what is there at the end of the event
    loop's turn, and what arrives while it is busy goes together the next time.

    Args:
        policy: what answers.
        max_rows: of one pass; a request with more takes several.
        executor: where batches go that take long.
        quick_rows: of a batch that stays in the event loop, since handing it to another thread
            costs as much as the pass of a small net.
        on_batch: called with the rows of every pass.
    """

    def __init__(
        self,
        policy: PolicyRunner,
        max_rows: int,
        executor: Executor,
        quick_rows: int,
        on_batch: Callable[[int], None],
    ) -> None:
        self._policy, self._max_rows = policy, max_rows
        self._executor, self._quick_rows, self._on_batch = executor, quick_rows, on_batch
        self._waiting: list[_Item] = []
        self._worker: asyncio.Task[None] | None = None
        self.last_pass_at = float("-inf")
        """When the last pass ended, by `time.monotonic`."""

    async def act(
        self,
        obs: FloatArray,
        *,
        deterministic: bool,
        history: History | None,
        mask: Mask | None = None,
    ) -> Actions:
        """Actions for observations (B, *shape); arguments as of `PolicyRunner.act`.

        Raises:
            ObservationError: as `PolicyRunner.act`.
        """
        loop = asyncio.get_running_loop()
        item = _Item(obs, deterministic, history, mask, loop.create_future())
        self._waiting.append(item)
        if len(self._waiting) == 1 and self._worker is None:
            loop.call_soon(self._flush)
        return await item.answer

    def _flush(self) -> None:
        """Answers one batch, here or by a worker; the event loop has its turn before the next."""
        batch = self._next_batch()
        if sum(len(item.obs) for item in batch) > self._quick_rows:
            self._worker = asyncio.get_running_loop().create_task(self._work(batch))
            return
        _answer(batch, self._outcomes(batch))
        self._flush_later()

    async def _work(self, batch: list[_Item]) -> None:
        loop = asyncio.get_running_loop()
        _answer(batch, await loop.run_in_executor(self._executor, self._outcomes, batch))
        self._worker = None
        self._flush_later()

    def _flush_later(self) -> None:
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)

    def _next_batch(self) -> list[_Item]:
        """The first ones that want the same kind of action."""
        kind = self._waiting[0].deterministic
        batch: list[_Item] = []
        left: list[_Item] = []
        rows = 0
        for item in self._waiting:
            if item.deterministic != kind or (batch and rows + len(item.obs) > self._max_rows):
                left.append(item)
            else:
                batch.append(item)
                rows += len(item.obs)
        self._waiting = left
        return batch

    def _outcomes(self, batch: list[_Item]) -> list[Actions | Exception]:
        """The answer to each item, or why there is none."""
        try:
            answers = self._pass(batch)
        except Exception as error:
            if len(batch) == 1:
                return [error]
            # What one client has sent must not fail the others.
            return [outcome for item in batch for outcome in self._outcomes([item])]
        ends = list(accumulate(len(item.obs) for item in batch))
        parts = zip(*(np.split(array, ends[:-1]) for array in answers), strict=True)
        return [Actions(*arrays) for arrays in parts]

    def _pass(self, batch: list[_Item]) -> Actions:
        deterministic = batch[0].deterministic
        if len(batch) == 1:
            obs, history, mask = batch[0].obs, batch[0].history, batch[0].mask
        else:
            obs = np.concatenate([item.obs for item in batch])
            history, mask = self._histories(batch), self._masks(batch)
        parts = []
        for first in range(0, len(obs), self._max_rows):
            rows = slice(first, first + self._max_rows)
            actions = self._policy.act(
                obs[rows],
                deterministic=deterministic,
                history=None if history is None else history.rows(rows),
                mask=None if mask is None else mask[rows],
            )
            parts.append(actions)
            self._on_batch(len(parts[-1].actions))
            self.last_pass_at = time.monotonic()
        if len(parts) == 1:
            return parts[0]
        return Actions(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def _histories(self, batch: list[_Item]) -> History | None:
        """Those of all items; one that has none begins an episode."""
        length, spec = self._policy.actor.context_length, self._policy.action_spec
        if length == 1:
            return None
        histories = [
            item.history or History.first_steps(item.obs.reshape(len(item.obs), -1), length, spec)
            for item in batch
        ]
        return History(*(np.concatenate(parts) for parts in zip(*histories, strict=True)))

    def _masks(self, batch: list[_Item]) -> Mask | None:
        """Those of all items; one that has none allows all actions."""
        if all(item.mask is None for item in batch):
            return None
        size = self._policy.action_spec.num_dist_inputs
        everything = (np.ones((len(item.obs), size), np.bool_) for item in batch)
        pairs = zip(batch, everything, strict=True)
        return np.concatenate([whole if item.mask is None else item.mask for item, whole in pairs])


def _answer(batch: list[_Item], outcomes: list[Actions | Exception]) -> None:
    for item, outcome in zip(batch, outcomes, strict=True):
        if item.answer.done():  # its client may have gone
            continue
        if isinstance(outcome, Exception):
            item.answer.set_exception(outcome)
        else:
            item.answer.set_result(outcome)
