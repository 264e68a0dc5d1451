"""Proximal policy optimisation (arXiv 1707.06347) with a critic that may read the history.

Actor and critic are independent nets with their own optimisers. The actor learns from shuffled
rows, the critic from sequences; both see every step of the batch `num_epochs` times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from custom_models.heads import distribution
from rl_service.algorithms.base import OnPolicyAlgorithm
from rl_service.algorithms.batch import ActorRows, CriticChunks, LearnerBatch, shuffled
from rl_service.algorithms.minibatch_step import MinibatchStep
from rl_service.algorithms.policy import ActorCriticPolicy


class PPOPolicy(ActorCriticPolicy):
    """Clipped surrogate for the actor, squared error of normalised targets for the critic."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        algorithm = self.settings.algorithm
        self.kl_coeff = torch.tensor(algorithm.kl_coeff, device=self.device)
        losses: dict[str, Callable[[Any], Tensor]] = {
            "actor": self._actor_loss,
            "critic": self._critic_loss,
        }
        self._step = {
            name: MinibatchStep(losses[name], optimizer, algorithm.grad_clip)
            for name, optimizer in self.optimizers.items()
        }

    def update_actor(self, batch: LearnerBatch) -> dict[str, float]:
        stats = {"actor_lr": self._set_lr("actor", self.settings.algorithm.actor_lr)}
        stats["kl_coeff"] = float(self.kl_coeff)
        stats |= self._improve_actor(batch.actor)
        self._adapt_kl_coeff(stats["mean_kl_loss"])
        return stats

    def update_critic(self, batch: LearnerBatch) -> dict[str, float]:
        stats = {"critic_lr": self._set_lr("critic", self.settings.algorithm.critic_lr)}
        values = self.denormalise_values(batch.critic.outputs.cpu().numpy())
        stats["vf_explained_var"] = explained_variance(batch.critic, values)
        return stats | self._fit_critic(batch.critic)

    def _set_lr(self, name: str, start: float) -> float:
        linear = self.settings.algorithm.lr_schedule == "linear"
        lr = start * (1.0 - self.progress) if linear else start
        self.optimizers[name].set_lr(lr)
        return lr

    def _permutation(self, num_items: int) -> Tensor:
        return torch.from_numpy(self.rng.permutation(num_items)).to(self.device)

    def _improve_actor(self, rows: ActorRows) -> dict[str, float]:
        """Passes over the step rows in shuffled minibatches, until done or the KL is too large."""
        algorithm = self.settings.algorithm
        if algorithm.normalize_advantages:
            spread = rows.advantages.std(correction=0) + 1e-8
            rows = rows._replace(advantages=(rows.advantages - rows.advantages.mean()) / spread)
        num_minibatches = max(1, round(len(rows.obs) / algorithm.minibatch_size))
        norms: list[Tensor] = []
        for epoch in range(1, algorithm.num_epochs + 1):
            for minibatch in shuffled(rows, self._permutation(len(rows.obs)), num_minibatches):
                norms.append(self._step["actor"](minibatch).grad_norm)
            if algorithm.max_kl is None and epoch < algorithm.num_epochs:
                continue
            stats = self._actor_stats(rows)
            if algorithm.max_kl is not None and stats["mean_kl_loss"] > algorithm.max_kl:
                break
        grad_norm = float(torch.stack(norms).mean())
        return stats | {"grad_norm_actor": grad_norm, "num_epochs_done": epoch}

    def _actor_loss(self, rows: ActorRows) -> Tensor:
        algorithm = self.settings.algorithm
        new = distribution(self.action_spec, self.net.actor(rows.obs))
        loss = self._surrogate_loss(rows, new.log_prob(rows.actions))
        if algorithm.entropy_coeff:
            loss = loss - algorithm.entropy_coeff * new.entropy().mean()
        if algorithm.kl_coeff:
            old = distribution(self.action_spec, rows.dist_inputs)
            loss = loss + self.kl_coeff * old.kl(new).mean()  # type: ignore[arg-type]
        return loss

    def _surrogate_loss(self, rows: ActorRows, log_prob: Tensor) -> Tensor:
        """Negative clipped surrogate, a scalar."""
        clip = self.settings.algorithm.clip_param
        ratio = (log_prob - rows.action_logp).exp()  # (B,)
        clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
        return -torch.minimum(rows.advantages * ratio, rows.advantages * clipped).mean()

    @torch.no_grad()
    def _actor_stats(self, rows: ActorRows) -> dict[str, float]:
        """How the updated policy differs from the one that sampled, over the whole batch."""
        old = distribution(self.action_spec, rows.dist_inputs)
        new = distribution(self.action_spec, self.net.actor(rows.obs))
        log_prob = new.log_prob(rows.actions)
        ratio = (log_prob - rows.action_logp).exp()
        outside = (ratio - 1.0).abs() > self.settings.algorithm.clip_param
        return {
            "policy_loss": float(self._surrogate_loss(rows, log_prob)),
            "entropy": float(new.entropy().mean()),
            "mean_kl_loss": float(old.kl(new).mean()),  # type: ignore[arg-type]
            "clip_fraction": float(outside.float().mean()),
        }

    def _fit_critic(self, batch: CriticChunks) -> dict[str, float]:
        """Passes over the chunks in shuffled minibatches."""
        algorithm = self.settings.algorithm
        self._update_value_stats(batch)
        batch = batch._replace(targets=self.normalise_values(batch.targets))
        num_chunks = len(batch.loss_mask)
        num_steps = int(batch.loss_mask.sum())
        num_minibatches = min(num_chunks, max(1, round(num_steps / algorithm.minibatch_size)))
        totals: list[Tensor] = []
        for _ in range(algorithm.critic_num_epochs or algorithm.num_epochs):
            for minibatch in shuffled(batch, self._permutation(num_chunks), num_minibatches):
                totals.append(torch.stack(self._step["critic"](minibatch)))
        vf_loss, grad_norm = torch.stack(totals).mean(0).tolist()
        return {"vf_loss": vf_loss, "grad_norm_critic": grad_norm}

    def _critic_loss(self, batch: CriticChunks) -> Tensor:
        """Mean squared error over the steps of a minibatch, in the critic's units."""
        values = self.critic_outputs(batch.chunks, batch.targets.shape[1])  # (B, C)
        error = (values - batch.targets).square()
        clip = self.settings.algorithm.vf_clip_param
        if clip is not None:
            near = batch.outputs + (values - batch.outputs).clamp(-clip, clip)
            error = torch.maximum(error, (near - batch.targets).square())
        loss: Tensor = (error * batch.loss_mask).sum() / batch.loss_mask.sum().clamp(min=1)
        return loss

    def _update_value_stats(self, batch: CriticChunks) -> None:
        if self.settings.algorithm.normalize_values:
            self.value_stats.update(batch.targets[batch.loss_mask].cpu().numpy())

    def _adapt_kl_coeff(self, kl: float) -> None:
        """Keeps the KL near its target, with RLlib's factors."""
        target = self.settings.algorithm.kl_target
        if kl > 2.0 * target:
            self.kl_coeff.mul_(1.5)
        elif kl < 0.5 * target:
            self.kl_coeff.mul_(0.5)

    def get_learner_state(self) -> dict[str, Any]:
        return super().get_learner_state() | {"kl_coeff": float(self.kl_coeff)}

    def set_learner_state(self, state: dict[str, Any]) -> None:
        super().set_learner_state(state)
        self.kl_coeff.fill_(state["kl_coeff"])


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


class PPO(OnPolicyAlgorithm):
    """RLlib algorithm; all but the policy is shared."""

    policy_class = PPOPolicy
