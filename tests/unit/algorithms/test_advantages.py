"""GAE against a loop written straight from the definition, in all ways a step can end."""

from __future__ import annotations

import numpy as np
import pytest
from ray.rllib.policy.sample_batch import SampleBatch

from rl_service.algorithms.advantages import generalized_advantages
from rl_service.rollout.fragments import LOSS_MASK, Columns, segment_ids

GAMMA, LAMBDA = 0.9, 0.8
STEP, CONTEXT, FINAL = "step", "context", "final"


def rows(*plan: tuple[str, int, int, bool]) -> Columns:
    """Rows from (kind, episode, t, terminated)."""
    rng = np.random.default_rng(0)
    return {
        LOSS_MASK: np.array([kind == STEP for kind, *_ in plan]),
        SampleBatch.EPS_ID: np.array([episode for _, episode, _, _ in plan]),
        SampleBatch.T: np.array([t for _, _, t, _ in plan]),
        SampleBatch.TERMINATEDS: np.array([end for *_, end in plan]),
        SampleBatch.REWARDS: rng.normal(size=len(plan)).astype(np.float32),
    }


def by_hand(rewards: list[float], values: list[float], bootstrap: float) -> list[float]:
    """Sum over l of (gamma lambda)^l delta_{t+l}, as the definition says."""
    following = [*values[1:], bootstrap]
    deltas = [r + GAMMA * n - v for r, v, n in zip(rewards, values, following, strict=True)]
    return [
        sum((GAMMA * LAMBDA) ** (i - t) * deltas[i] for i in range(t, len(deltas)))
        for t in range(len(deltas))
    ]


def check(batch: Columns, steps: slice, bootstrap_row: int | None) -> None:
    values = np.random.default_rng(1).normal(size=len(batch[LOSS_MASK])).astype(np.float32)
    advantages, targets = generalized_advantages(batch, segment_ids(batch), values, GAMMA, LAMBDA)
    bootstrap = 0.0 if bootstrap_row is None else float(values[bootstrap_row])
    expected = by_hand(
        batch[SampleBatch.REWARDS][steps].tolist(), values[steps].tolist(), bootstrap
    )
    np.testing.assert_allclose(advantages[steps], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(targets[steps], expected + values[steps], rtol=1e-5, atol=1e-6)
    assert not advantages[~batch[LOSS_MASK]].any()


def test_terminated_episode_is_not_bootstrapped() -> None:
    batch = rows((STEP, 1, 0, False), (STEP, 1, 1, False), (STEP, 1, 2, True), (STEP, 2, 0, False))
    check(batch, slice(0, 3), None)


def test_time_limit_is_bootstrapped_from_the_final_observation() -> None:
    batch = rows(
        (STEP, 1, 0, False), (STEP, 1, 1, False), (FINAL, 1, 2, False), (STEP, 2, 0, False)
    )
    check(batch, slice(0, 2), 2)


def test_cut_fragment_is_bootstrapped_from_the_next_observation() -> None:
    batch = rows(
        (STEP, 1, 4, False), (STEP, 1, 5, False), (STEP, 1, 6, False), (FINAL, 1, 7, False)
    )
    check(batch, slice(0, 3), 3)


def test_fragment_that_starts_in_mid_episode_ignores_its_context() -> None:
    batch = rows(
        (FINAL, 9, 3, False),
        (CONTEXT, 1, 4, False),
        (CONTEXT, 1, 5, False),
        (STEP, 1, 6, False),
        (STEP, 1, 7, False),
        (FINAL, 1, 8, False),
    )
    check(batch, slice(3, 5), 5)


def test_same_episode_in_two_fragments_of_a_batch_does_not_leak() -> None:
    batch = rows(
        (STEP, 1, 0, False),
        (STEP, 1, 1, False),
        (FINAL, 1, 2, False),
        (CONTEXT, 1, 0, False),
        (CONTEXT, 1, 1, False),
        (STEP, 1, 2, False),
        (FINAL, 1, 3, False),
    )
    assert segment_ids(batch).tolist() == [0, 0, 0, 1, 1, 1, 1]
    check(batch, slice(0, 2), 2)
    check(batch, slice(5, 6), 6)


@pytest.mark.parametrize("lambda_", [0.0, 1.0])
def test_extremes_are_the_td_error_and_the_monte_carlo_return(lambda_: float) -> None:
    batch = rows((STEP, 1, 0, False), (STEP, 1, 1, False), (STEP, 1, 2, True))
    values = np.array([0.5, -1.0, 2.0], np.float32)
    advantages, _ = generalized_advantages(batch, segment_ids(batch), values, GAMMA, lambda_)
    r = batch[SampleBatch.REWARDS]
    td = [r[0] + GAMMA * -1.0 - 0.5, r[1] + GAMMA * 2.0 + 1.0, r[2] - 2.0]
    returns = [r[0] + GAMMA * (r[1] + GAMMA * r[2]), r[1] + GAMMA * r[2], r[2]]
    expected = td if lambda_ == 0.0 else np.array(returns) - values
    np.testing.assert_allclose(advantages, expected, rtol=1e-5)
