"""What every on-policy policy shares: acting, optimisers, units of values, weights and state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from ray.rllib.policy.sample_batch import SampleBatch
from ray.rllib.policy.view_requirement import ViewRequirement
from torch import Tensor

from custom_models.distributions import MASKED, distribution
from custom_models.draws import Draws
from custom_models.heads import GaussianHead
from custom_models.history import History
from custom_models.interfaces import Chunks
from custom_models.nets import ActorCritic
from custom_models.rllib_models import num_context_steps
from custom_models.spaces import ActionSpec, FloatArray
from rl_service.algorithms.advantages import generalized_advantages
from rl_service.algorithms.batch import (
    ActorRows,
    CriticChunks,
    LearnerBatch,
    explained_variance,
)
from rl_service.algorithms.chunks import IntArray
from rl_service.algorithms.compiled import CompiledSteps, Loss, SquaredError, compiled_steps
from rl_service.algorithms.optimizer import FlatOptimizer, GradientSteps, MinibatchStep
from rl_service.algorithms.peers import ALONE, NETS, Peers
from rl_service.algorithms.rllib_policy import RLlibPolicy
from rl_service.config.settings import Settings
from rl_service.rollout.filters import RunningMeanStd
from rl_service.rollout.fragments import ACTOR_INPUTS, Columns
from rl_service.rollout.sampler import Acted, Decide

ADAM_EPSILON = 1e-5
_UPDATE_METHODS = ("update_actor", "update_critic", "fit_critic")


class ActorCriticPolicy(RLlibPolicy):
    """Base of PPO, A2C and TRPO: subclasses write `update_actor`, and `actor_loss` if they step.

    On rollout workers it is only an actor: the critic, both optimisers and the statistics of the
    value targets are in the learner, and only the actor's weights travel.
    """

    minibatch_chunks = 8  # steps in a row teach nearly the same

    def __init__(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: Any
    ) -> None:
        self.settings: Settings = config["settings"]
        self.algorithm: Any = self.settings.algorithm
        self.is_learner: bool = config["worker_index"] == 0
        self.action_spec = ActionSpec.from_space(action_space)
        self.value_stats = RunningMeanStd()
        self.rngs = {
            name: np.random.default_rng([self.settings.seed, stream])
            for stream, name in enumerate(NETS)
        }
        """Of the order of each net's minibatches: two nets may learn at once."""
        self.peers: Mapping[str, Peers] = dict.fromkeys(NETS, ALONE)
        """The learners that learn each net together."""
        super().__init__(observation_space, action_space, config)
        self.net: ActorCritic = self.model.net
        self.num_context_steps = num_context_steps(self.view_requirements)
        for unused in (SampleBatch.PREV_ACTIONS, SampleBatch.PREV_REWARDS):
            # With these, RLlib lays its action buffer out so that earlier actions come late by one.
            self.view_requirements.pop(unused, None)
        made = [SampleBatch.ACTION_LOGP, SampleBatch.ACTION_DIST_INPUTS]
        if self.net.actor.num_inputs is not None:
            made.append(ACTOR_INPUTS)
        for column in made:
            # Made while acting, wanted in training: RLlib's sampler keeps only what is asked for.
            self.view_requirements[column] = ViewRequirement(used_for_compute_actions=False)
        self.optimizers = self.build_optimizers() if self.is_learner else {}
        resources = self.settings.resources
        self._low = self.is_learner and resources.learner_precision == "bfloat16"
        self.net.actor.autocast_dtype = torch.bfloat16 if self._low else None
        compiled = self.is_learner and resources.learner_compile
        self._critic: Any = torch.compile(self.net.critic) if compiled else self.net.critic

    def join(self, peers: Mapping[str, Peers]) -> None:
        """Takes all further steps together with other learners, or alone again."""
        self.peers = peers
        self.__dict__.pop("steps", None)
        for module in self.net.modules():
            if isinstance(module, GaussianHead):
                module.is_kept_inside_later = not peers["actor"].is_alone

    @cached_property
    def steps(self) -> dict[str, GradientSteps]:
        """Gradient steps of each net that has an optimiser."""
        return {name: self._build_steps(name, each) for name, each in self.optimizers.items()}

    def _build_steps(self, name: str, optimizer: FlatOptimizer) -> GradientSteps:
        grad_clip, peers = self.algorithm.grad_clip, self.peers[name]
        compiled = compiled_steps(optimizer, partial(self.compiled_loss, name), grad_clip, peers)
        return compiled or MinibatchStep(
            self.actor_loss if name == "actor" else self.critic_loss,
            optimizer,
            grad_clip,
            recorded=name == "critic" or self.net.actor.repeats_its_work,
            peers=peers,
        )

    def compiled_loss(self, name: str) -> Loss | None:
        """What the loss of that net computes, if machine code can do the same.

        A subclass with a loss of its own has none unless it says so.
        """
        own, names = ActorCriticPolicy, ("critic_loss", "critic_error", "critic_outputs")
        if name == "critic" and self._has_methods_of(own, *names):
            return SquaredError(None)
        return None

    def _has_methods_of(self, owner: type, *names: str) -> bool:
        """Whether no class derived from `owner` has others."""
        return all(getattr(type(self), name) is getattr(owner, name) for name in names)

    @property
    def learns_apart(self) -> bool:
        """Whether actor and critic can learn at once, in two threads.

        Steps in machine code let another thread work, and draw no random numbers. Updates from
        outside this package may depend on each other.
        """
        ours = all(
            getattr(type(self), name).__module__.startswith("rl_service.")
            for name in _UPDATE_METHODS
        )
        return ours and any(isinstance(steps, CompiledSteps) for steps in self.steps.values())

    def build_optimizers(self) -> dict[str, FlatOptimizer]:
        """Separate Adam optimisers for actor and critic, as in GPT2PPO."""
        return {
            "actor": self.build_adam("actor", self.algorithm.actor_lr),
            "critic": self.build_adam("critic", self.algorithm.critic_lr),
        }

    def build_adam(self, name: str, lr: float) -> FlatOptimizer:
        """Adam for the net of that name."""
        return FlatOptimizer(
            getattr(self.net, name),
            lambda parameters: torch.optim.Adam(parameters, lr, eps=ADAM_EPSILON, fused=True),
        )

    def critic_outputs(self, chunks: Chunks, num_values: int) -> Tensor:
        """The critic's outputs (B, num_values) for the last steps of chunks, in its own units.

        Computed in the precision that the settings ask for; a small actor always computes in
        float32, since its probabilities are compared with those of the rollout workers.
        """
        with torch.autocast(self.device.type, torch.bfloat16) if self._low else nullcontext():
            outputs: Tensor = self._critic(chunks, num_values)
        return outputs.float()

    def action_distribution(self, rows: ActorRows) -> Any:
        """The current policy's distribution at a batch's steps."""
        return distribution(self.action_spec, self.net.actor(rows.inputs), rows.dist_inputs)

    def sampling_distribution(self, rows: ActorRows) -> Any:
        """The distribution that a batch's actions were drawn from."""
        return distribution(self.action_spec, rows.dist_inputs)

    def open(self) -> Decide:
        """What decides with the current weights, for as long as these stay as they are."""
        cache = self.net.actor.open_cache()
        if cache is not None:
            return lambda history: (cache.decide(history), None)
        return self._decide

    def _decide(self, history: History) -> tuple[FloatArray, npt.NDArray[Any] | None]:
        made = self.net.actor.encode(history)
        dist_inputs = self.net(made).cpu().numpy()
        return dist_inputs, None if self.net.actor.num_inputs is None else made.cpu().numpy()

    @torch.inference_mode()
    def act(
        self,
        history: History,
        draws: Draws,
        decide: Decide,
        masks: npt.NDArray[np.bool_] | None,
    ) -> Acted:
        """Samples actions.

        Args:
            history: of B envs.
            draws: the random numbers.
            decide: what has the current weights.
            masks: (B, D) which are allowed; None: all.
        """
        dist_inputs, inputs = decide(history)
        if masks is not None:
            dist_inputs = np.where(masks, dist_inputs, np.float32(MASKED))
        return Acted(draws(dist_inputs), dist_inputs, inputs)

    def advantages(
        self, batch: Columns, segments: IntArray, values: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Advantages (N,) and value targets (N,) of the step rows, zero on all others: GAE.

        Args:
            batch: N rows of fragments.
            segments: (N,) one id per unbroken stretch of an episode.
            values: (N,) of each row, in units of the return; context rows have 0.
        """
        algorithm = self.algorithm
        return generalized_advantages(batch, segments, values, algorithm.gamma, algorithm.lambda_)

    def normalise_values(self, values: Tensor) -> Tensor:
        """Converts units of the return to the critic's."""
        if not self.algorithm.normalize_values:
            return values
        return (values - float(self.value_stats.mean)) / float(self.value_stats.std)

    def denormalise_values(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Converts the critic's units to those of the return."""
        if not self.algorithm.normalize_values:
            return values
        out = values * self.value_stats.std + self.value_stats.mean
        return out.astype(np.float32)

    @abstractmethod
    def update_actor(self, batch: LearnerBatch) -> dict[str, float]:
        """Improves the actor; returns metrics that `rl_service.common.metrics` lists."""

    def actor_loss(self, rows: ActorRows) -> Tensor:
        """Loss of a minibatch, a scalar, for a policy whose actor has an optimiser."""
        raise NotImplementedError

    def update_critic(self, batch: LearnerBatch) -> dict[str, float]:
        """Fits the critic; this and the actor's update may not depend on each other."""
        critic = batch.critic
        values = self.denormalise_values(critic.outputs.cpu().numpy())
        stats = {"vf_explained_var": explained_variance(critic, values)}
        if "critic" in self.optimizers:
            stats["critic_lr"] = self.set_lr("critic", self.algorithm.critic_lr)
        if self.algorithm.normalize_values:
            self.value_stats.update(critic.targets[critic.loss_mask].cpu().numpy())
        normalised = critic._replace(targets=self.normalise_values(critic.targets))
        return stats | self.fit_critic(normalised)

    def fit_critic(self, batch: CriticChunks) -> dict[str, float]:
        """Passes over the chunks in shuffled minibatches; targets are in the critic's units."""
        num_chunks = len(batch.loss_mask)
        wanted = round(int(batch.loss_mask.sum()) / self.algorithm.env_steps_per_critic_step)
        num_minibatches = min(num_chunks, max(1, wanted))
        passes = [
            self.steps["critic"].run(batch, self.permutation("critic", num_chunks), num_minibatches)
            for _ in range(self.algorithm.critic_passes)
        ]
        vf_loss, grad_norm = (float(torch.cat(each).mean()) for each in zip(*passes, strict=True))
        return {"vf_loss": vf_loss, "grad_norm_critic": grad_norm}

    def critic_loss(self, batch: CriticChunks) -> Tensor:
        """Mean squared error over the steps of a minibatch, in the critic's units."""
        values = self.critic_outputs(batch.chunks, batch.targets.shape[1])  # (B, C)
        error = self.critic_error(values, batch) * batch.loss_mask
        loss: Tensor = error.sum() / batch.loss_mask.sum().clamp(min=1)
        return loss

    def critic_error(self, values: Tensor, batch: CriticChunks) -> Tensor:
        """(B, C) squared error of each value."""
        return (values - batch.targets).square()

    def with_normalised_advantages(self, rows: ActorRows) -> ActorRows:
        """The rows, with advantages as the settings ask for."""
        return rows.with_normalised_advantages() if self.algorithm.normalize_advantages else rows

    def permutation(self, name: str, num_items: int) -> Tensor:
        """(num_items,) in random order, for the net of that name."""
        return torch.from_numpy(self.rngs[name].permutation(num_items)).to(self.device)

    def set_lr(self, name: str, start: float) -> float:
        """Sets and returns the scheduled learning rate."""
        linear = self.algorithm.lr_schedule == "linear"
        lr = start * (1.0 - self.progress) if linear else start
        self.optimizers[name].set_lr(lr)
        return lr

    @property
    def progress(self) -> float:
        """Fraction of the run that is done, 0…1, from RLlib's global timestep."""
        total = self.settings.total_env_steps
        return min(1.0, self.global_timestep / total) if total else 0.0

    def get_learner_state(self) -> dict[str, Any]:
        """Everything that learning has changed: nets, optimisers, statistics, random state."""
        return {
            "net": self.net.own_state(),
            "optimizers": {name: o.state_dict() for name, o in self.optimizers.items()},
            "value_stats": self.value_stats.state(),
            "rngs": {name: rng.bit_generator.state for name, rng in self.rngs.items()},
            "global_timestep": self.global_timestep,
            "cuda_rng": torch.cuda.get_rng_state() if self.device.type == "cuda" else None,
        }

    def set_learner_state(self, state: dict[str, Any]) -> None:
        """Continues from the state that `get_learner_state` returned.

        Raises:
            RuntimeError: if the nets have other shapes.
        """
        self.net.load_own_state(state["net"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.value_stats = RunningMeanStd.from_state(state["value_stats"])
        for name, rng in self.rngs.items():
            # An earlier release had one for both.
            rng.bit_generator.state = state["rngs"][name] if "rngs" in state else state["rng"]
        self.global_timestep = state["global_timestep"]
        if self.device.type == "cuda" and state["cuda_rng"] is not None:
            torch.cuda.set_rng_state(state["cuda_rng"])

    def to_device(self, array: npt.NDArray[Any]) -> Tensor:
        """A column as a tensor on the learner's device; a GPU fetches it in the background."""
        column = torch.from_numpy(np.ascontiguousarray(array))
        if self.device.type != "cuda":
            return column
        return column.pin_memory().to(self.device, non_blocking=True)
