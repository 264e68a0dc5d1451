"""From rows of fragments to a learner's batch: values, advantages, and both views of the steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from ray.rllib.policy.sample_batch import SampleBatch
from torch import Tensor

from custom_models.interfaces import PADDING_SEGMENT, Chunks
from rl_service.algorithms.optimizer import map_columns
from rl_service.rollout.fragments import (
    ACTOR_INPUTS,
    LOSS_MASK,
    Columns,
    context_rows,
    history_at,
    segment_ids,
)

if TYPE_CHECKING:
    from rl_service.algorithms.policy import ActorCriticPolicy

STEPS_PER_PASS = 8192
"""Bound on the steps passed over at once without gradients, for memory."""
IntArray = npt.NDArray[np.int64]


class ActorRows(NamedTuple):
    """The step rows, in any order: what the actor's loss needs. N rows."""

    inputs: Tensor
    """(N, I) what the actor computes its distribution from: see `custom_models.interfaces`."""
    actions: Tensor
    """(N,) or (N, A)"""
    action_logp: Tensor
    """(N,) under the policy that sampled."""
    dist_inputs: Tensor
    """(N, num_dist_inputs) of the policy that sampled."""
    advantages: Tensor
    """(N,)"""


class CriticChunks(NamedTuple):
    """The same steps as sequences: what the critic's loss needs. M chunks, C values each."""

    chunks: Chunks
    loss_mask: Tensor
    """(M, C) true where a step's value is fitted."""
    targets: Tensor
    """(M, C) value targets in units of the return."""
    outputs: Tensor
    """(M, C) values before the update, in the critic's own units."""


class LearnerBatch(NamedTuple):
    """Both views of one batch."""

    actor: ActorRows
    critic: CriticChunks


Batch = TypeVar("Batch", ActorRows, CriticChunks)


def shuffled(batch: Batch, order: Tensor, num_minibatches: int) -> Iterator[Batch]:
    """Minibatches of nearly equal size that cover the batch once.

    The batch is put in order once; minibatches are then views.

    Args:
        batch: columns of N items.
        order: (N,) permutation.
        num_minibatches: at most N.
    """
    permuted = map_columns(batch, lambda column: column.index_select(0, order))
    sizes = [len(part) for part in order.tensor_split(num_minibatches)]
    start = 0
    for size in sizes:
        piece = slice(start, start + size)
        yield map_columns(permuted, lambda column: column[piece])  # noqa: B023, used at once
        start += size


def build_learner_batch(policy: ActorCriticPolicy, samples: SampleBatch) -> LearnerBatch:
    """Computes values once, then advantages, and cuts the batch into both views."""
    batch: Columns = {name: np.asarray(samples[name]) for name in samples}
    segments = segment_ids(batch)
    plan, chunks = _cut(policy, batch, segments)
    outputs = compute_outputs(policy, chunks, plan.num_values)
    values = _scatter(plan, len(segments), policy.denormalise_values(outputs.cpu().numpy()))
    advantages, targets = policy.advantages(batch, segments, values)
    asked_rows = plan.asked_rows
    return LearnerBatch(
        actor=policy.in_own_precision(_actor_rows(policy, batch, advantages)),
        critic=CriticChunks(
            chunks=chunks,
            loss_mask=policy.to_device(batch[LOSS_MASK][asked_rows] & plan.asked),
            targets=policy.to_device(targets[asked_rows]),
            outputs=outputs,
        ),
    )


def _cut(
    policy: ActorCriticPolicy, batch: Columns, segments: npt.NDArray[np.int64]
) -> tuple[ChunkPlan, Chunks]:
    plan = plan_chunks(
        context_rows(batch, segments),
        prefix_length=policy.num_context_steps,
        chunk_length=chunk_length(policy),
    )
    chunks = gather_chunks(
        plan,
        critic_inputs(policy, batch, segments),
        policy.to_device(batch[SampleBatch.ACTIONS]),
        policy.to_device(batch[SampleBatch.REWARDS]),
        policy.to_device(batch[SampleBatch.T]),
        policy.to_device(segments),
    )
    return plan, chunks


def critic_inputs(
    policy: ActorCriticPolicy, batch: Columns, segments: npt.NDArray[np.int64]
) -> Tensor:
    """What the critic reads of each row, (N, O), or (N, C) if those are the actor's features."""
    if not policy.net.config.critic_reads_features:
        return policy.to_device(batch[SampleBatch.OBS])
    actor, mask = policy.net.actor, batch[LOSS_MASK]
    features = torch.zeros((len(mask), actor.feature_size), device=policy.device)
    steps = policy.to_device(mask)
    features[steps] = actor.features(policy.to_device(batch[ACTOR_INPUTS][mask]))
    # No action was taken at the observations that end the fragments.
    finals = np.flatnonzero(~mask & ~context_rows(batch, segments))
    if len(finals):
        history = history_at(batch, segments, finals, actor.context_length)
        features[policy.to_device(finals)] = actor.features(actor.encode(history))
    return features


def chunk_length(policy: ActorCriticPolicy) -> int:
    """Values to aim at in a chunk: 1 without context, for single steps then.

    A chunk also passes over K-1 steps of context, so it has half as many values at least, and a
    value costs about three steps at most, where fragments and minibatches are long enough.
    """
    if policy.num_context_steps == 0:
        return 1
    minibatch: int = policy.algorithm.env_steps_per_critic_step
    half = -(-policy.num_context_steps // 2)
    return min(minibatch, max(1, minibatch // policy.minibatch_chunks, half))


def _input_column(batch: Columns) -> str:
    return ACTOR_INPUTS if ACTOR_INPUTS in batch else str(SampleBatch.OBS)


def _actor_rows(
    policy: ActorCriticPolicy, batch: Columns, advantages: npt.NDArray[np.float32]
) -> ActorRows:
    mask = batch[LOSS_MASK]
    return ActorRows(
        inputs=policy.to_device(batch[_input_column(batch)][mask]),
        actions=policy.to_device(batch[SampleBatch.ACTIONS][mask]),
        action_logp=policy.to_device(batch[SampleBatch.ACTION_LOGP][mask]),
        dist_inputs=policy.to_device(batch[SampleBatch.ACTION_DIST_INPUTS][mask]),
        advantages=policy.to_device(advantages[mask]),
    )


@torch.no_grad()
def compute_outputs(policy: ActorCriticPolicy, chunks: Chunks, num_values: int) -> Tensor:
    """The critic's outputs for the last `num_values` steps of each chunk, in its own units.

    One pass per batch (in slices that bound memory), dropout off.

    Returns:
        (M, num_values) float32.
    """
    critic = policy.net.critic
    assert critic is not None
    critic.eval()
    steps = max(chunks.obs.shape[1], num_values * critic.steps_per_value)  # of each chunk
    per_pass = max(1, STEPS_PER_PASS // steps)
    slices = zip(*(column.split(per_pass) for column in chunks), strict=True)
    outputs = [policy.critic_outputs(Chunks(*columns), num_values) for columns in slices]
    critic.train()
    return torch.cat(outputs)


def _scatter(
    plan: ChunkPlan, num_rows: int, values: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """From (M, C) to one value per row (N,); context rows get 0."""
    out = np.zeros(num_rows, np.float32)
    out[plan.asked_rows[plan.asked]] = values[plan.asked]
    return out


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


def explained_variance(batch: CriticChunks, values: npt.NDArray[np.float32]) -> float:
    """1 - Var(targets - values) / Var(targets) over the steps; 0 for constant targets.

    Args:
        batch: with the targets.
        values: (M, C) in units of the return.
    """
    steps = batch.loss_mask.cpu().numpy()
    targets = batch.targets.cpu().numpy()[steps].astype(np.float64)
    variance = float(np.var(targets))
    return 0.0 if variance == 0.0 else 1.0 - float(np.var(targets - values[steps])) / variance
