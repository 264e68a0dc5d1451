"""Requests that arrive together are answered together, each with its own."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from rl_service.common.errors import ObservationError
from rl_service.policies import Actions, load_bundle
from rl_service.serving.batching import Batcher
from tests.conftest import WriteTestBundle


@pytest.fixture(params=[100, 0], ids=["in the event loop", "in a thread"])
def quick_rows(request: pytest.FixtureRequest) -> int:
    return request.param


THREAD = ThreadPoolExecutor(1)


def test_requests_of_one_turn_go_together_and_answers_are_their_own(
    tmp_path: Path, write_test_bundle: WriteTestBundle, quick_rows: int
) -> None:
    write_test_bundle(tmp_path / "b", "LunarLander-v3")
    policy = load_bundle(tmp_path / "b")
    obs = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    rows: list[int] = []

    async def ask() -> list[np.ndarray]:
        batcher = Batcher(policy, 16, THREAD, quick_rows, rows.append)
        parts = [
            batcher.act(obs[i : i + 2], deterministic=i < 20, history=None) for i in range(0, 40, 2)
        ]
        return [answer.dist_inputs for answer in await asyncio.gather(*parts)]

    answers = np.concatenate(asyncio.run(ask()))
    expected = policy.act(obs, deterministic=True).dist_inputs
    np.testing.assert_allclose(answers, expected, rtol=0, atol=1e-6)
    assert rows == [16, 4, 16, 4]  # the two kinds of action apart, 16 rows at most


def test_a_request_larger_than_a_batch_takes_several_passes(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "b")
    rows: list[int] = []
    batcher = Batcher(load_bundle(tmp_path / "b"), 4, THREAD, 100, rows.append)

    async def ask() -> None:
        await asyncio.gather(
            *(
                batcher.act(np.zeros((n, 4), np.float32), deterministic=True, history=None)
                for n in (9, 1)
            )
        )

    asyncio.run(ask())
    assert rows == [4, 4, 1, 1]


def test_a_failure_reaches_who_asked(
    tmp_path: Path, write_test_bundle: WriteTestBundle, quick_rows: int
) -> None:
    write_test_bundle(tmp_path / "b")
    batcher = Batcher(load_bundle(tmp_path / "b"), 4, THREAD, quick_rows, lambda rows: None)

    async def ask() -> None:
        with pytest.raises(ObservationError):
            await batcher.act(np.zeros((1, 3), np.float32), deterministic=True, history=None)
        good = await batcher.act(np.zeros((1, 4), np.float32), deterministic=True, history=None)
        assert good.actions.shape == (1,)

    asyncio.run(ask())


def test_one_request_without_an_answer_fails_no_other(
    tmp_path: Path, write_test_bundle: WriteTestBundle, quick_rows: int
) -> None:
    write_test_bundle(tmp_path / "b")
    policy, obs = load_bundle(tmp_path / "b"), np.zeros((1, 4), np.float32)
    batcher = Batcher(policy, 16, THREAD, quick_rows, lambda rows: None)
    free = policy.act(obs, deterministic=True)
    other = np.arange(2)[None] != free.actions[0]
    masks = [None, np.zeros((1, 2), np.bool_), other]

    async def ask() -> list[Actions | BaseException]:
        asked = [batcher.act(obs, deterministic=True, history=None, mask=mask) for mask in masks]
        return await asyncio.gather(*asked, return_exceptions=True)

    first, second, third = asyncio.run(ask())
    assert isinstance(first, Actions) and first.actions.tolist() == free.actions.tolist()
    assert isinstance(second, ObservationError)
    assert isinstance(third, Actions) and third.actions.tolist() == [1 - free.actions[0]]
