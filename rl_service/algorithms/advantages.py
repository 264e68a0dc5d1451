"""Generalised advantage estimation (GAE) over rows of fragments (arXiv 1506.02438)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from ray.rllib.policy.sample_batch import SampleBatch

from rl_service.rollout.fragments import LOSS_MASK, Columns

Float32Array = npt.NDArray[np.float32]


def generalized_advantages(
    batch: Columns,
    segments: npt.NDArray[np.int64],
    values: Float32Array,
    gamma: float,
    lambda_: float,
) -> tuple[Float32Array, Float32Array]:
    """Advantages and value targets of the step rows.

    A step is bootstrapped from the value of the row after it, which is the next step of its
    episode or, at a time limit or a cut, a final row; a terminated step from nothing. The sum
    over later steps ends with the episode or the fragment.

    Args:
        batch: rows of fragments.
        segments: (N,) from `segment_ids`.
        values: (N,) value of each row in units of the return; context rows may hold anything.
        gamma: discount.
        lambda_: 0 gives the one-step TD error, 1 the Monte Carlo return minus the value.

    Returns:
        Advantages (N,) and value targets (N,), zero on rows that are no steps.
    """
    mask = batch[LOSS_MASK].astype(bool)
    alive = ~batch[SampleBatch.TERMINATEDS].astype(bool)
    same = np.append(segments[1:] == segments[:-1], False)
    next_values = np.append(values[1:], 0.0)
    deltas = batch[SampleBatch.REWARDS] + gamma * next_values * (alive & same) - values
    next_is_step = np.append(mask[1:], False)
    carry = gamma * lambda_ * (alive & same & next_is_step)
    advantages = _reverse_scan(np.where(mask, deltas, 0.0), np.where(mask, carry, 0.0))
    targets = np.where(mask, advantages + values, 0.0)
    return advantages.astype(np.float32), targets.astype(np.float32)


def _reverse_scan(
    deltas: npt.NDArray[np.float64], carry: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """`x[i] = deltas[i] + carry[i] * x[i + 1]`; plain floats are faster here than array items."""
    out = [0.0] * len(deltas)
    following = 0.0
    for i, (delta, factor) in enumerate(
        zip(reversed(deltas.tolist()), reversed(carry.tolist()), strict=True)
    ):
        following = delta + factor * following
        out[-1 - i] = following
    return np.asarray(out)
