"""Requests that arrive together go through the net together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import NamedTuple

import numpy as np

from custom_models.history import History
from custom_models.spaces import FloatArray
from rl_service.policies.runner import Actions, PolicyRunner


class _Item(NamedTuple):
    obs: FloatArray
    deterministic: bool
    history: History | None
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
        self, obs: FloatArray, *, deterministic: bool, history: History | None
    ) -> Actions:
        """Actions for observations (B, *shape); arguments as of `PolicyRunner.act`.

        Raises:
            ObservationError: as `PolicyRunner.act`.
        """
        loop = asyncio.get_running_loop()
        item = _Item(obs, deterministic, history, loop.create_future())
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
        try:
            _answer(batch, self._pass(batch))
        except Exception as error:
            _fail(batch, error)
        self._flush_later()

    async def _work(self, batch: list[_Item]) -> None:
        loop = asyncio.get_running_loop()
        try:
            _answer(batch, await loop.run_in_executor(self._executor, self._pass, batch))
        except Exception as error:
            _fail(batch, error)
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

    def _pass(self, batch: list[_Item]) -> Actions:
        deterministic = batch[0].deterministic
        if len(batch) == 1:
            obs, history = batch[0].obs, batch[0].history
        else:
            obs, history = np.concatenate([item.obs for item in batch]), self._histories(batch)
        parts = []
        for first in range(0, len(obs), self._max_rows):
            rows = slice(first, first + self._max_rows)
            part = None if history is None else history.rows(rows)
            parts.append(self._policy.act(obs[rows], deterministic=deterministic, history=part))
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


def _answer(batch: list[_Item], answers: Actions) -> None:
    start = 0
    for item in batch:
        rows = slice(start, start + len(item.obs))
        start += len(item.obs)
        if not item.answer.done():  # its client may have gone
            item.answer.set_result(Actions(*(array[rows] for array in answers)))


def _fail(batch: list[_Item], error: Exception) -> None:
    for item in batch:
        if not item.answer.done():
            item.answer.set_exception(error)
