"""From rows of fragments to a learner's batch: values, advantages, and both views of the steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from ray.rllib.policy.sample_batch import SampleBatch
from torch import Tensor

from custom_models.distributions import distribution, masked_as
from custom_models.interfaces import Actor, Chunks
from rl_service.algorithms.chunks import (
    ChunkPlan,
    actor_chunk_length,
    critic_chunk_length,
    gather_chunks,
    plan_chunks,
)
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


class ActorRows(NamedTuple):
    """The step rows, in any order: what the actor's loss needs. N rows.

    For an actor that reads chunks, each row is a chunk of C steps: columns are (N, C, ...).
    """

    inputs: Tensor | Chunks
    """(N, I) what the actor computes its distribution from: see `custom_models.interfaces`."""
    actions: Tensor
    """(N, *row_shape) in the policy's units."""
    action_logp: Tensor
    """(N,) under the policy that sampled."""
    dist_inputs: Tensor
    """(N, num_dist_inputs) of the policy that sampled, masked where an action was not allowed."""
    advantages: Tensor
    """(N,)"""
    loss_mask: Tensor | None = None
    """(N, C) true where a chunk has a step to learn from; None: every row is one."""

    @property
    def num_steps(self) -> int:
        """Steps to learn from."""
        return len(self.actions) if self.loss_mask is None else int(self.loss_mask.sum())

    @property
    def steps_per_row(self) -> Tensor:
        """(N,) steps to learn from in each row."""
        if self.loss_mask is None:
            return torch.ones(len(self.actions), device=self.actions.device)
        return self.loss_mask.sum(1)

    def ratio(self, log_prob: Tensor) -> Tensor:
        """How much likelier each action is now, given its log-probability; 1 where no step is."""
        change = log_prob - self.action_logp
        if self.loss_mask is not None:
            change = change.masked_fill(~self.loss_mask, 0.0)  # before it may overflow
        return change.exp()

    def mean(self, column: Tensor) -> Tensor:
        """Mean over the steps, a scalar, of one number for each."""
        if self.loss_mask is None:
            return column.mean()
        mean: Tensor = (column * self.loss_mask).sum() / self.loss_mask.sum().clamp(min=1)
        return mean

    def with_normalised_advantages(self) -> ActorRows:
        """Advantages of mean 0 and deviation 1 over the steps."""
        steps = self.advantages if self.loss_mask is None else self.advantages[self.loss_mask]
        spread = steps.std(correction=0) + 1e-8
        return self._replace(advantages=(self.advantages - steps.mean()) / spread)


class CriticChunks(NamedTuple):
    """The same steps as sequences: what the critic's loss needs. M chunks, C values each."""

    chunks: Chunks
    loss_mask: Tensor
    """(M, C) true where a step's value is fitted."""
    targets: Tensor
    """(M, C) value targets in units of the return."""
    outputs: Tensor
    """(M, C) values before the update, in the critic's own units."""

    @property
    def steps_per_row(self) -> Tensor:
        """(M,) steps whose values are fitted in each chunk."""
        return self.loss_mask.sum(1)


class LearnerBatch(NamedTuple):
    """Both views of one batch."""

    actor: ActorRows
    critic: CriticChunks


def build_learner_batch(policy: ActorCriticPolicy, samples: SampleBatch) -> LearnerBatch:
    """Computes values once, then advantages, and cuts the batch into both views."""
    batch: Columns = {name: np.asarray(samples[name]) for name in samples}
    segments = segment_ids(batch)
    rest = tuple(
        policy.to_device(column)
        for column in (
            batch[SampleBatch.ACTIONS],
            batch[SampleBatch.REWARDS],
            batch[SampleBatch.T],
            segments,
        )
    )
    plan = plan_chunks(
        context_rows(batch, segments),
        prefix_length=policy.net.config.num_context_steps,
        chunk_length=critic_chunk_length(policy),
    )
    chunks = gather_chunks(plan, critic_inputs(policy, batch, segments), *rest)
    outputs = compute_outputs(policy, chunks, plan.num_values)
    values = _scatter(plan, len(segments), policy.denormalise_values(outputs.cpu().numpy()))
    advantages, targets = policy.advantages(batch, segments, values)
    asked_rows = plan.asked_rows
    return LearnerBatch(
        actor=_in_own_precision(policy, _actor_rows(policy, batch, rest, advantages)),
        critic=CriticChunks(
            chunks=chunks,
            loss_mask=policy.to_device(batch[LOSS_MASK][asked_rows] & plan.asked),
            targets=policy.to_device(targets[asked_rows]),
            outputs=outputs,
        ),
    )


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


def _input_column(batch: Columns) -> str:
    return ACTOR_INPUTS if ACTOR_INPUTS in batch else str(SampleBatch.OBS)


def _actor_rows(
    policy: ActorCriticPolicy,
    batch: Columns,
    rest: tuple[Tensor, ...],
    advantages: npt.NDArray[np.float32],
) -> ActorRows:
    """The steps as the actor reads them; `rest` are the columns of a chunk after its first."""
    inputs: Tensor | Chunks
    if policy.net.actor.reads_chunks:
        plan = plan_chunks(
            ~batch[LOSS_MASK],
            prefix_length=policy.net.actor.context_length - 1,
            chunk_length=actor_chunk_length(policy),
        )
        inputs = gather_chunks(plan, policy.to_device(batch[SampleBatch.OBS]), *rest)
        steps, loss_mask = plan.asked_rows, policy.to_device(plan.asked)
    else:
        steps, loss_mask = batch[LOSS_MASK], None
        inputs = policy.to_device(batch[_input_column(batch)][steps])
    return ActorRows(
        inputs=inputs,
        actions=policy.to_device(batch[SampleBatch.ACTIONS][steps]),
        action_logp=policy.to_device(batch[SampleBatch.ACTION_LOGP][steps]),
        dist_inputs=policy.to_device(batch[SampleBatch.ACTION_DIST_INPUTS][steps]),
        advantages=policy.to_device(advantages[steps]),
        loss_mask=loss_mask,
    )


def _in_own_precision(policy: ActorCriticPolicy, rows: ActorRows) -> ActorRows:
    """The rows, as if this policy had sampled their actions in the learner's precision.

    Before the first step their ratio must be 1, which it is not if they were sampled in float32 and
    the learner computes in less. Gradients are on, since a language model's pass is another one
    without; memory is bounded by its micro-batches.
    """
    if not policy.net.actor.has_low_precision:
        return rows
    with torch.enable_grad():
        dist_inputs = policy.net.actor(rows.inputs).detach()
    if policy.action_spec.is_categorical:
        dist_inputs = masked_as(dist_inputs, rows.dist_inputs)
    logp = distribution(policy.action_spec, dist_inputs).log_prob(rows.actions)
    return rows._replace(dist_inputs=dist_inputs, action_logp=logp)


@torch.no_grad()
def compute_dist_inputs(actor: Actor, inputs: Tensor | Chunks) -> Tensor:
    """What the actor computes for all rows, chunks in slices that bound memory."""
    if isinstance(inputs, Tensor):
        return actor(inputs)  # type: ignore[no-any-return]
    return torch.cat([actor(part) for part in _slices(inputs, inputs.obs.shape[1])])


def _slices(chunks: Chunks, steps: int) -> Iterator[Chunks]:
    """So many chunks at a time as a pass may hold, each of which passes over so many steps."""
    per_pass = max(1, STEPS_PER_PASS // steps)
    for columns in zip(*(column.split(per_pass) for column in chunks), strict=True):
        yield Chunks(*columns)


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
    outputs = [policy.critic_outputs(part, num_values) for part in _slices(chunks, steps)]
    critic.train()
    return torch.cat(outputs)


def _scatter(
    plan: ChunkPlan, num_rows: int, values: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """From (M, C) to one value per row (N,); context rows get 0."""
    out = np.zeros(num_rows, np.float32)
    out[plan.asked_rows[plan.asked]] = values[plan.asked]
    return out


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
