"""What every kind of model is, an actor and a critic that share no weights; and the small kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from custom_models.configs import GPT2CriticConfig, MLPConfig
from custom_models.heads import FeedForwardActor, StackActor, feed_forward, orthogonal_linear
from custom_models.interfaces import Actor, Chunks, Critic
from custom_models.model_config import ModelConfig
from custom_models.spaces import ActionSpec

_ACTOR, _CRITIC = "actor.", "critic."


class ActorCritic(nn.Module):
    """Base class of all kinds: a small actor, and a critic that the kind builds.

    The actor sees the last `config.acting_context_length` observations of an episode; the critic
    sees as many earlier steps as `config.num_context_steps` says.

    Args:
        config: which nets, and their sizes.
        observation_size: O, entries of a flattened observation.
        action_spec: the actions.
        with_critic: False if only actions are computed (rollout workers, serving).
        asks: True if not even those are: another process has the actor's weights.
    """

    def __init__(
        self,
        config: ModelConfig,
        observation_size: int,
        action_spec: ActionSpec,
        *,
        with_critic: bool = True,
        asks: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        self.observation_size = observation_size
        self.action_spec = action_spec
        build = self.build_asking_actor if asks else self.build_actor
        self.actor = build(config, observation_size, action_spec)
        self.critic: Critic | None = None
        if with_critic:
            self.critic = self.build_critic(
                config, observation_size, action_spec, self.actor.feature_size
            )

    @classmethod
    def build_actor(cls, config: Any, observation_size: int, action_spec: ActionSpec) -> Actor:
        """Builds only the actor, which is all that a trained policy needs to act."""
        noise = {"log_std": config.log_std, "log_std_init": config.log_std_init}
        if config.actor_gpt2 is not None:
            from custom_models.gpt2_actor import GPT2Actor  # transformers takes seconds to import

            return GPT2Actor(config.actor_gpt2, observation_size, action_spec, **noise)
        shape = {
            "hidden_sizes": config.hidden_sizes,
            "activation": config.activation,
            "activate_last": config.activate_last,
            **noise,
        }
        if config.acting_context_length == 1:
            return FeedForwardActor(observation_size, action_spec, **shape)
        return StackActor(
            observation_size,
            action_spec,
            context_length=config.acting_context_length,
            reads_actions=config.acts_on_past_actions,
            **shape,
        )

    @classmethod
    def build_asking_actor(
        cls, config: Any, observation_size: int, action_spec: ActionSpec
    ) -> Actor:
        """Builds what a rollout worker needs that asks an `InferenceActor`: no weights."""
        raise NotImplementedError

    @classmethod
    def build_critic(
        cls, config: Any, observation_size: int, action_spec: ActionSpec, feature_size: int
    ) -> Critic:
        """Builds only the critic.

        Args:
            config: of this kind.
            observation_size: O.
            action_spec: the actions.
            feature_size: of the actor, for a critic that reads its features.
        """
        raise NotImplementedError

    def forward(self, inputs: Any) -> Tensor:
        """The actor's `dist_inputs` (B, num_dist_inputs), for what it made of B histories."""
        dist_inputs: Tensor = self.actor(inputs).flatten(0, -2)
        return dist_inputs

    @property
    def whole_config(self) -> ModelConfig:
        """The settings that build a critic for the weights of this one, without other files."""
        return self.config

    def own_state(self) -> dict[str, Tensor]:
        """The weights that a fresh net of the same configuration has not."""
        actor = {_ACTOR + name: weight for name, weight in self.actor.own_state().items()}
        if self.critic is None:
            return actor
        return actor | {_CRITIC + name: value for name, value in self.critic.state_dict().items()}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        """Takes what `own_state` gave, of a net with a critic if this one has one.

        Raises:
            RuntimeError: if it is of another net.
        """
        self.actor.load(_under(_ACTOR, state))
        if self.critic is not None:
            self.critic.load_state_dict(_under(_CRITIC, state))


def _under(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): value for n, value in state.items() if n.startswith(prefix)}


class MLPCritic(Critic):
    """The baseline: value of each observation by itself; context, if any, is ignored."""

    def __init__(self, observation_size: int, hidden_sizes: Sequence[int], activation: str) -> None:
        super().__init__()
        self.body = feed_forward(observation_size, hidden_sizes, activation, activate_last=True)
        width = hidden_sizes[-1] if hidden_sizes else observation_size
        self.value_head = orthogonal_linear(width, 1, 1.0)

    def forward(self, chunks: Chunks, num_values: int) -> Tensor:
        """Values (B, num_values) of the last `num_values` steps of each chunk."""
        return self.values(chunks.obs[:, -num_values:])

    def values(self, obs: Tensor) -> Tensor:
        """Values (...,) of observations (..., O)."""
        values: Tensor = self.value_head(self.body(obs)).squeeze(-1)
        return values


class MLP(ActorCritic):
    """The kind `mlp`."""

    @classmethod
    def build_critic(
        cls, config: MLPConfig, observation_size: int, action_spec: ActionSpec, feature_size: int
    ) -> Critic:
        return MLPCritic(observation_size, config.critic_hidden_sizes, config.activation)


class GPT2CriticNet(ActorCritic):
    """The kind `gpt2_critic`: a small actor and a GPT-2 critic."""

    config: GPT2CriticConfig

    @classmethod
    def build_critic(
        cls,
        config: GPT2CriticConfig,
        observation_size: int,
        action_spec: ActionSpec,
        feature_size: int,
    ) -> Critic:
        from custom_models.gpt2_critic import GPT2Critic  # transformers takes seconds to import

        return GPT2Critic(config, observation_size, action_spec)

    @property
    def whole_config(self) -> GPT2CriticConfig:
        if self.config.pretrained is None:
            return self.config
        critic: Any = self.critic
        return self.config.model_copy(update=critic.sizes_without_folder)


def build_actor_critic(
    config: ModelConfig,
    observation_size: int,
    action_spec: ActionSpec,
    *,
    with_critic: bool = True,
    asks: bool = False,
) -> ActorCritic:
    """Builds freshly initialised nets; draws from torch's global random state.

    Args:
        config: which nets, and their sizes.
        observation_size: O, entries of a flattened observation.
        action_spec: the actions.
        with_critic: as for `ActorCritic`.
        asks: likewise.

    Raises:
        FileNotFoundError: if `config.pretrained` has no such model.
    """
    net: type[ActorCritic] = config.import_implementation()
    return net(config, observation_size, action_spec, with_critic=with_critic, asks=asks)
