"""Proximal policy optimisation (arXiv 1707.06347) with a critic that may read the history.

Actor and critic are independent nets with their own optimisers. The actor learns from shuffled
rows, the critic from sequences; both see every step of the batch `num_epochs` times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from ray.rllib.policy.sample_batch import SampleBatch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from custom_models.critic import Chunks
from custom_models.heads import distribution
from rl_service.algorithms.base import OnPolicyAlgorithm
from rl_service.algorithms.batch import ActorRows, CriticChunks, build_learner_batch
from rl_service.algorithms.policy import ActorCriticPolicy


class PPOPolicy(ActorCriticPolicy):
    """Clipped surrogate for the actor, squared error of normalised targets for the critic."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.kl_coeff: float = self.settings.algorithm.kl_coeff

    def learn_on_batch(self, samples: SampleBatch) -> dict[str, float]:
        """Updates both nets from rows of fragments.

        Returns:
            Means over all minibatches, by the names in `rl_service.metrics`.
        """
        actor_lr, critic_lr = self._set_learning_rates()
        batch = build_learner_batch(self, samples)
        stats = {"vf_explained_var": explained_variance(batch.critic)}
        stats |= self._fit_critic(batch.critic)
        stats |= self._improve_actor(batch.actor)
        self._adapt_kl_coeff(stats["mean_kl_loss"])
        return stats | {"actor_lr": actor_lr, "critic_lr": critic_lr, "kl_coeff": self.kl_coeff}

    def _set_learning_rates(self) -> tuple[float, float]:
        algorithm = self.settings.algorithm
        left = 1.0 - self.progress if algorithm.lr_schedule == "linear" else 1.0
        rates = (algorithm.actor_lr * left, algorithm.critic_lr * left)
        for optimizer, rate in zip(self._optimizers, rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate
        return rates

    def _minibatches(self, num_items: int, size: int) -> Iterator[Tensor]:
        """Shuffled index sets that together cover all items once; none is much smaller."""
        order = torch.from_numpy(self.rng.permutation(num_items)).to(self.device)
        return iter(order.tensor_split(max(1, round(num_items / size))))

    def _improve_actor(self, rows: ActorRows) -> dict[str, float]:
        algorithm = self.settings.algorithm
        if algorithm.normalize_advantages:
            spread = rows.advantages.std(correction=0) + 1e-8
            rows.advantages = (rows.advantages - rows.advantages.mean()) / spread
        parameters = list(self.net.actor.parameters())
        totals: list[Tensor] = []
        for epoch in range(algorithm.num_epochs):  # noqa: B007, the number of passes is reported
            kls: list[Tensor] = []
            for index in self._minibatches(len(rows.obs), algorithm.minibatch_size):
                loss, stats = self._actor_loss(rows, index)
                self._optimizers[0].zero_grad()
                loss.backward()
                norm = clip_grad_norm_(parameters, algorithm.grad_clip or float("inf"))
                self._optimizers[0].step()
                kls.append(stats[2])
                totals.append(torch.cat([stats, norm.detach().view(1)]))
            if algorithm.max_kl is not None and float(torch.stack(kls).mean()) > algorithm.max_kl:
                break
        names = ("policy_loss", "entropy", "mean_kl_loss", "clip_fraction", "grad_norm_actor")
        means = torch.stack(totals).mean(0).tolist()
        return dict(zip(names, means, strict=True)) | {"num_epochs_done": epoch + 1}

    def _actor_loss(self, rows: ActorRows, index: Tensor) -> tuple[Tensor, Tensor]:
        """Loss, and (policy loss, entropy, KL, clip fraction) of one minibatch."""
        algorithm = self.settings.algorithm
        new = distribution(self.action_spec, self.net.actor(rows.obs[index]))
        old = distribution(self.action_spec, rows.dist_inputs[index])
        log_ratio = new.log_prob(rows.actions[index]) - rows.action_logp[index]  # (B,)
        ratio = log_ratio.exp()
        advantages = rows.advantages[index]
        clipped = ratio.clamp(1.0 - algorithm.clip_param, 1.0 + algorithm.clip_param)
        policy_loss = -torch.minimum(advantages * ratio, advantages * clipped).mean()
        entropy = new.entropy().mean()
        kl = old.kl(new).mean()  # type: ignore[arg-type]  # both are of one action space
        loss = policy_loss - algorithm.entropy_coeff * entropy + self.kl_coeff * kl
        outside = (ratio != clipped).float().mean()
        return loss, torch.stack([policy_loss, entropy, kl, outside]).detach()

    def _fit_critic(self, batch: CriticChunks) -> dict[str, float]:
        algorithm = self.settings.algorithm
        critic = self.net.critic
        assert critic is not None
        self._update_value_stats(batch)
        targets = self.normalise_values(batch.targets)  # (M, C)
        old_values = self.normalise_values(batch.values)
        parameters = [p for p in critic.parameters() if p.requires_grad]
        num_chunks, num_values = batch.loss_mask.shape
        size = max(1.0, algorithm.minibatch_size / num_values)
        totals: list[Tensor] = []
        for _ in range(algorithm.num_epochs):
            for index in self._minibatches(num_chunks, size):
                values = critic(Chunks(*(c[index] for c in batch.chunks)), num_values)
                loss = self._critic_loss(
                    values, targets[index], old_values[index], batch.loss_mask[index]
                )
                self._optimizers[1].zero_grad()
                loss.backward()
                norm = clip_grad_norm_(parameters, algorithm.grad_clip or float("inf"))
                self._optimizers[1].step()
                totals.append(torch.stack([loss.detach(), norm.detach()]))
        vf_loss, grad_norm = torch.stack(totals).mean(0).tolist()
        return {"vf_loss": vf_loss, "grad_norm_critic": grad_norm}

    def _critic_loss(
        self, values: Tensor, targets: Tensor, old_values: Tensor, mask: Tensor
    ) -> Tensor:
        """Mean squared error over the steps of a minibatch, all arguments (B, C)."""
        error = (values - targets).square()
        clip = self.settings.algorithm.vf_clip_param
        if clip is not None:
            near = old_values + (values - old_values).clamp(-clip, clip)
            error = torch.maximum(error, (near - targets).square())
        return (error * mask).sum() / mask.sum().clamp(min=1)

    def _update_value_stats(self, batch: CriticChunks) -> None:
        if self.settings.algorithm.normalize_values:
            self.value_stats.update(batch.targets[batch.loss_mask].cpu().numpy())

    def _adapt_kl_coeff(self, kl: float) -> None:
        """Keeps the KL near its target, with RLlib's factors."""
        target = self.settings.algorithm.kl_target
        if kl > 2.0 * target:
            self.kl_coeff *= 1.5
        elif kl < 0.5 * target:
            self.kl_coeff *= 0.5

    def get_learner_state(self) -> dict[str, Any]:
        return super().get_learner_state() | {"kl_coeff": self.kl_coeff}

    def set_learner_state(self, state: dict[str, Any]) -> None:
        super().set_learner_state(state)
        self.kl_coeff = state["kl_coeff"]


def explained_variance(batch: CriticChunks) -> float:
    """1 - Var(targets - values) / Var(targets) over the steps; 0 for constant targets."""
    targets = batch.targets[batch.loss_mask].double().cpu().numpy()
    values = batch.values[batch.loss_mask].double().cpu().numpy()
    variance = float(np.var(targets))
    return 0.0 if variance == 0.0 else 1.0 - float(np.var(targets - values)) / variance


class PPO(OnPolicyAlgorithm):
    """RLlib algorithm; all but the policy is shared."""

    policy_class = PPOPolicy
