"""From a configuration to an actor and a critic."""

from __future__ import annotations

from torch import Tensor, nn

from custom_models.actor import Actor
from custom_models.configs import (
    GPT2CriticConfig,
    GPT2CriticSettings,
    LLMPolicyConfig,
    ModelConfig,
)
from custom_models.critic import Critic
from custom_models.heads import FeedForwardActor
from custom_models.mlp import MLPCritic
from custom_models.spaces import ActionSpec

_ACTOR, _CRITIC = "actor.", "critic."


class ActorCritic(nn.Module):
    """An actor and a critic that share no weights.

    The actor sees the last `config.acting_context_length` observations of an episode; the critic
    sees as many earlier steps as `config.num_context_steps` says.
    """

    def __init__(
        self,
        config: ModelConfig,
        observation_size: int,
        action_spec: ActionSpec,
        *,
        with_critic: bool = True,
    ) -> None:
        super().__init__()
        self.config = config
        self.observation_size = observation_size
        self.action_spec = action_spec
        self.actor = build_actor(config, observation_size, action_spec)
        self.critic: Critic | None = None
        if with_critic:
            self.critic = build_critic(
                config, observation_size, action_spec, self.actor.feature_size
            )
        self.critic_reads_features = (
            isinstance(config, LLMPolicyConfig) and config.critic == "hidden_state"
        )
        """Whether the critic reads the actor's features in the place of observations."""

    def forward(self, inputs: Tensor) -> Tensor:
        """The actor's `dist_inputs` (B, num_dist_inputs)."""
        dist_inputs: Tensor = self.actor(inputs)
        return dist_inputs

    @property
    def whole_config(self) -> ModelConfig:
        """The settings that build a critic for the weights of this one, without other files."""
        config, settings = self.config, self.config.gpt2_settings
        if settings is None or settings.pretrained is None:
            return config
        from custom_models.gpt2_critic import GPT2Critic  # transformers takes seconds to import

        assert isinstance(self.critic, GPT2Critic)
        sizes = self.critic.sizes_without_folder
        if isinstance(config, LLMPolicyConfig):
            sizes = {"gpt2_critic": settings.model_copy(update=sizes)}
        return config.model_copy(update=sizes)

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


def build_actor(config: ModelConfig, observation_size: int, action_spec: ActionSpec) -> Actor:
    """The actor alone: all that a trained policy needs to act."""
    if isinstance(config, LLMPolicyConfig):
        from custom_models.llm_policy import LLMActor  # transformers takes seconds to import

        return LLMActor(config, observation_size, action_spec)
    return FeedForwardActor(
        observation_size,
        action_spec,
        hidden_sizes=config.hidden_sizes,
        activation=config.activation,
        activate_last=config.activate_last,
        log_std=config.log_std,
        log_std_init=config.log_std_init,
    )


def build_critic(
    config: ModelConfig, observation_size: int, action_spec: ActionSpec, feature_size: int
) -> Critic:
    """The critic alone.

    Args:
        config: which net, and its sizes.
        observation_size: O.
        action_spec: the actions.
        feature_size: of the actor, for a critic that reads its features.
    """
    if isinstance(config, GPT2CriticConfig):
        return _build_gpt2_critic(config, observation_size, action_spec)
    num_inputs = observation_size
    if isinstance(config, LLMPolicyConfig):
        if config.critic == "gpt2":
            return _build_gpt2_critic(config.gpt2_critic, observation_size, action_spec)
        if config.critic == "hidden_state":
            num_inputs = feature_size
    return MLPCritic(num_inputs, config.critic_hidden_sizes, config.activation)


def _build_gpt2_critic(
    settings: GPT2CriticSettings, observation_size: int, action_spec: ActionSpec
) -> Critic:
    from custom_models.gpt2_critic import GPT2Critic  # transformers takes seconds to import

    return GPT2Critic(settings, observation_size, action_spec)


def build_actor_critic(
    config: ModelConfig,
    observation_size: int,
    action_spec: ActionSpec,
    *,
    with_critic: bool = True,
) -> ActorCritic:
    """Builds freshly initialised nets; draws from torch's global random state.

    Args:
        config: which nets, and their sizes.
        observation_size: O, entries of a flattened observation.
        action_spec: the actions.
        with_critic: False where only actions are computed (rollout workers, serving).

    Raises:
        FileNotFoundError: if `config.pretrained` holds no such model.
    """
    return ActorCritic(config, observation_size, action_spec, with_critic=with_critic)
