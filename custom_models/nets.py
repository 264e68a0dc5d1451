"""From a configuration to an actor and a critic."""

from __future__ import annotations

from torch import Tensor, nn

from custom_models.configs import GPT2CriticConfig, ModelConfig
from custom_models.critic import Critic
from custom_models.heads import Actor
from custom_models.mlp import MLPCritic
from custom_models.spaces import ActionSpec


class ActorCritic(nn.Module):
    """An actor and a critic that share no weights.

    The actor sees the current observation alone; the critic sees as many earlier steps of the
    same episode as `config.num_context_steps` says.
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
        self.critic = _build_critic(config, observation_size, action_spec) if with_critic else None

    def forward(self, obs: Tensor) -> Tensor:
        """The actor's `dist_inputs` (B, num_dist_inputs)."""
        dist_inputs: Tensor = self.actor(obs)
        return dist_inputs


def build_actor(config: ModelConfig, observation_size: int, action_spec: ActionSpec) -> Actor:
    """The actor alone: all that a trained policy needs to act."""
    return Actor(
        observation_size,
        action_spec,
        hidden_sizes=config.hidden_sizes,
        activation=config.activation,
        activate_last=config.activate_last,
        log_std=config.log_std,
        log_std_init=config.log_std_init,
    )


def _build_critic(config: ModelConfig, observation_size: int, action_spec: ActionSpec) -> Critic:
    if isinstance(config, GPT2CriticConfig):
        from custom_models.gpt2_critic import GPT2Critic  # transformers takes seconds to import

        return GPT2Critic(config, observation_size, action_spec)
    return MLPCritic(observation_size, config.critic_hidden_sizes, config.activation)


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
        FileNotFoundError: if `config.pretrained` holds no GPT-2.
    """
    return ActorCritic(config, observation_size, action_spec, with_critic=with_critic)
