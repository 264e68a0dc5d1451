"""Proximal policy optimisation (arXiv 1707.06347) with a critic that may read the history.

Actor and critic are independent nets with their own optimisers. A net that reads the history
learns from shuffled sequences, another one from shuffled rows; both see every step of the batch
`num_epochs` times.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from custom_models.distributions import distribution
from rl_service.algorithms.base import OnPolicyAlgorithm
from rl_service.algorithms.batch import (
    ActorRows,
    CriticChunks,
    LearnerBatch,
    compute_dist_inputs,
)
from rl_service.algorithms.compiled import Loss, SquaredError, Surrogate
from rl_service.algorithms.policy import ActorCriticPolicy
from rl_service.config.algorithms import PPOSettings


class PPOPolicy(ActorCriticPolicy):
    """Clipped surrogate for the actor, squared error of normalised targets for the critic."""

    algorithm: PPOSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.kl_coeff = torch.tensor(self.algorithm.kl_coeff, device=self.device)

    def update_actor(self, batch: LearnerBatch) -> dict[str, float]:
        stats = {"actor_lr": self.set_lr("actor", self.algorithm.actor_lr)}
        stats["kl_coeff"] = float(self.kl_coeff)
        stats |= self._improve_actor(batch.actor)
        self._adapt_kl_coeff(stats["mean_kl_loss"])
        return stats

    def _improve_actor(self, rows: ActorRows) -> dict[str, float]:
        """Passes over the step rows in shuffled minibatches, until done or the KL is too large."""
        algorithm = self.algorithm
        rows = self.with_normalised_advantages(rows)
        num_rows = len(rows.actions)
        wanted = round(rows.num_steps / algorithm.minibatch_size)
        num_minibatches = min(num_rows, max(1, wanted))
        norms: list[Tensor] = []
        for epoch in range(1, algorithm.num_epochs + 1):
            order = self.permutation("actor", num_rows)
            norms.append(self.steps["actor"].run(rows, order, num_minibatches).grad_norm)
            if algorithm.max_kl is None and epoch < algorithm.num_epochs:
                continue
            stats = self._stats_of_first(rows)
            if algorithm.max_kl is not None and stats["mean_kl_loss"] > algorithm.max_kl:
                break
        grad_norm = float(torch.cat(norms).mean())
        return stats | {"grad_norm_actor": grad_norm, "num_epochs_done": epoch}

    def actor_loss(self, rows: ActorRows) -> Tensor:
        algorithm = self.algorithm
        new = self.action_distribution(rows)
        loss = self._surrogate_loss(rows, new.log_prob(rows.actions))
        if algorithm.entropy_coeff:
            loss = loss - algorithm.entropy_coeff * rows.mean(new.entropy())
        if algorithm.kl_coeff:
            loss = loss + self.kl_coeff * rows.mean(self.sampling_distribution(rows).kl(new))
        return loss

    def _surrogate_loss(self, rows: ActorRows, log_prob: Tensor) -> Tensor:
        """Negative clipped surrogate, a scalar."""
        clip = self.algorithm.clip_param
        ratio = rows.ratio(log_prob)  # (B,)
        clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
        return -rows.mean(torch.minimum(rows.advantages * ratio, rows.advantages * clipped))

    def _stats_of_first(self, rows: ActorRows) -> dict[str, float]:
        """`_actor_stats`, which the first of several learners computes; all need the KL alone."""
        peers = self.peers["actor"]
        stats = self._actor_stats(rows) if peers.is_first else {}
        return stats | {"mean_kl_loss": peers.from_first(stats.get("mean_kl_loss", 0.0))}

    @torch.no_grad()
    def _actor_stats(self, rows: ActorRows) -> dict[str, float]:
        """How the updated policy differs from the one that sampled, over the whole batch."""
        outputs = compute_dist_inputs(self.net.actor, rows.inputs)
        old = self.sampling_distribution(rows)
        new = distribution(self.action_spec, outputs, rows.dist_inputs)
        log_prob = new.log_prob(rows.actions)
        outside = (rows.ratio(log_prob) - 1.0).abs() > self.algorithm.clip_param
        return {
            "policy_loss": float(self._surrogate_loss(rows, log_prob)),
            "entropy": float(rows.mean(new.entropy())),
            "mean_kl_loss": float(rows.mean(old.kl(new))),
            "clip_fraction": float(rows.mean(outside.float())),
        }

    def critic_error(self, values: Tensor, batch: CriticChunks) -> Tensor:
        error = super().critic_error(values, batch)
        clip = self.algorithm.vf_clip_param
        if clip is None:
            return error
        near = batch.outputs + (values - batch.outputs).clamp(-clip, clip)
        return torch.maximum(error, (near - batch.targets).square())

    def compiled_loss(self, name: str) -> Loss | None:
        algorithm = self.algorithm
        if name == "critic" and self._has_methods_of(
            PPOPolicy, "critic_loss", "critic_error", "critic_outputs"
        ):
            return SquaredError(algorithm.vf_clip_param)
        if name == "actor" and self._has_methods_of(
            PPOPolicy,
            "actor_loss",
            "_surrogate_loss",
            "action_distribution",
            "sampling_distribution",
        ):
            return Surrogate(algorithm.clip_param, algorithm.entropy_coeff, float(self.kl_coeff))
        return None

    def _adapt_kl_coeff(self, kl: float) -> None:
        """Keeps the KL near its target, with RLlib's factors."""
        target = self.algorithm.kl_target
        if kl > 2.0 * target:
            self.kl_coeff.mul_(1.5)
        elif kl < 0.5 * target:
            self.kl_coeff.mul_(0.5)

    def get_learner_state(self) -> dict[str, Any]:
        start = self.algorithm.kl_coeff
        return super().get_learner_state() | {"kl_coeff": (float(self.kl_coeff), start)}

    def set_learner_state(self, state: dict[str, Any]) -> None:
        super().set_learner_state(state)
        adapted, start = state["kl_coeff"]
        if start == self.algorithm.kl_coeff:  # else the resumed run was given another one
            self.kl_coeff.fill_(adapted)


class PPO(OnPolicyAlgorithm):
    """RLlib algorithm; all but the policy is shared."""

    policy_class = PPOPolicy
