"""Changes of the GPT-2 critic that are no settings: kinds for `tests.learning.critics`."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from custom_models.configs import GPT2CriticConfig
from custom_models.gpt2_critic import GPT2Critic
from custom_models.interfaces import Chunks, Critic
from custom_models.nets import GPT2CriticNet, MLPCritic
from custom_models.spaces import ActionSpec
from rl_service.algorithms.ppo import PPO, PPOPolicy
from rl_service.config.algorithms import PPOSettings


class _Variant(GPT2CriticConfig):
    implementation: ClassVar[str] = f"{__name__}:VariantNet"
    learner_module: ClassVar[str] = __name__
    critic_class: ClassVar[type[GPT2Critic]] = GPT2Critic


class VariantNet(GPT2CriticNet):
    """A small actor, and a changed critic."""

    @classmethod
    def build_critic(
        cls, config: Any, observation_size: int, action_spec: ActionSpec, feature_size: int
    ) -> Critic:
        return config.critic_class(config, observation_size, action_spec)


class ShortcutCritic(GPT2Critic):
    """An MLP gives the value of the state; a head that starts at zero adds what history says."""

    def __init__(self, config: Any, observation_size: int, action_spec: ActionSpec) -> None:
        super().__init__(config, observation_size, action_spec)
        self.shortcut = MLPCritic(observation_size, (64, 64), "tanh")
        nn.init.zeros_(self.value_head.weight)

    def forward(self, chunks: Chunks, num_values: int) -> Tensor:
        values: Tensor = super().forward(chunks, num_values)
        return values + self.shortcut(chunks, num_values)


class ForgetfulCritic(GPT2Critic):
    """In training, half of the chunks have no history."""

    def forward(self, chunks: Chunks, num_values: int) -> Tensor:
        if self.training:
            alone = torch.arange(chunks.segment_ids.shape[1], device=chunks.segment_ids.device)
            forget = torch.rand(len(chunks.segment_ids), 1, device=alone.device) < 0.5
            chunks = chunks._replace(segment_ids=torch.where(forget, alone, chunks.segment_ids))
        return super().forward(chunks, num_values)


class OneLayerCritic(GPT2Critic):
    """One of the layers alone looks back."""

    layer: ClassVar[int]

    def __init__(self, config: Any, observation_size: int, action_spec: ActionSpec) -> None:
        super().__init__(config, observation_size, action_spec)
        reaches = [1] * len(self.trunk.h)
        reaches[self.layer] = self.context_length
        self.reaches = tuple(reaches)


class FirstLayerCritic(OneLayerCritic):
    layer: ClassVar[int] = 0


class LastLayerCritic(OneLayerCritic):
    layer: ClassVar[int] = -1


class Shortcut(_Variant):
    critic_class: ClassVar[type[GPT2Critic]] = ShortcutCritic


class Forgetful(_Variant):
    critic_class: ClassVar[type[GPT2Critic]] = ForgetfulCritic


class FirstLayer(_Variant):
    critic_class: ClassVar[type[GPT2Critic]] = FirstLayerCritic


class LastLayer(_Variant):
    critic_class: ClassVar[type[GPT2Critic]] = LastLayerCritic


class WarmUpPolicy(PPOPolicy):
    """The critic's learning rate grows from zero over the first twentieth of the run."""

    def set_lr(self, name: str, start: float) -> float:
        lr = start * min(1.0, (self.progress + 1e-3) / 0.05) if name == "critic" else start
        return super().set_lr(name, lr)


class WarmUpPPO(PPO):
    """PPO with that policy."""

    policy_class = WarmUpPolicy


class WarmUp(PPOSettings):
    implementation: ClassVar[str] = f"{__name__}:WarmUpPPO"


class OneStretchPolicy(PPOPolicy):
    """A minibatch of the critic is one stretch of one environment."""

    minibatch_chunks = 1


class OneStretchPPO(PPO):
    """PPO with that policy."""

    policy_class = OneStretchPolicy


class OneStretch(PPOSettings):
    implementation: ClassVar[str] = f"{__name__}:OneStretchPPO"
