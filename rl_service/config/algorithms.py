"""The settings of each algorithm: those that all share, and its own."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, SerializeAsAny

from custom_models.kinds import (
    Kind,
    Kinds,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    UnitFloat,
)


class OnPolicySettings(Kind):
    """What every algorithm has.

    An algorithm of your own derives from this class or from one below, and names its
    implementation, a subclass of `rl_service.algorithms.base.OnPolicyAlgorithm`.
    """

    critic_lr: PositiveFloat = 1e-3
    """Learning rate of the critic."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """`linear`: learning rates fall to zero at the end of the run (`stop.iterations` or
    `stop.env_steps`, whichever comes first)."""
    gamma: UnitFloat = 0.99
    """Discount of each next step's reward."""
    lambda_: UnitFloat = 0.95
    """λ of GAE. 0: the one-step TD error. 1: the n-step return minus the value."""
    grad_clip: PositiveFloat | None = 0.5
    """Largest global norm of a gradient, separately for actor and critic. None: no limit."""
    train_batch_size: PositiveInt = 2048
    """Env steps of an iteration, over all workers."""
    normalize_advantages: bool = True
    """Normalise the advantages of each batch to mean 0 and deviation 1."""
    normalize_values: bool = True
    """Let the critic learn value targets that are normalised by their running mean and
    deviation, which are saved with the weights."""

    def env_steps_per_update(self, num_envs: int) -> int:
        """Env steps between two updates of the policy.

        Args:
            num_envs: of all workers together.
        """
        return self.train_batch_size

    @property
    def critic_passes(self) -> int:
        """Passes of the critic over each batch."""
        return 1

    @property
    def env_steps_per_critic_step(self) -> int:
        """Env steps that each gradient step of the critic learns from."""
        return self.train_batch_size

    @property
    def env_steps_per_actor_step(self) -> int:
        """Env steps that each step of the actor learns from, at most."""
        return self.train_batch_size


class PPOSettings(OnPolicySettings):
    kind: ClassVar[str] = "ppo"
    implementation: ClassVar[str] = "rl_service.algorithms.ppo:PPO"

    actor_lr: PositiveFloat = 3e-4
    """Learning rate of the actor."""
    clip_param: PositiveFloat = 0.2
    """ε: the probability ratio is clipped to 1 ± ε."""
    vf_clip_param: PositiveFloat | None = None
    """Limit of the change of a value, in units of the (normalised) value. None: no limit."""
    entropy_coeff: NonNegativeFloat = 0.0
    """Weight of the entropy bonus."""
    kl_coeff: NonNegativeFloat = 0.0
    """Initial weight of a KL penalty, which then adapts so that the KL stays near `kl_target`."""
    kl_target: PositiveFloat = 0.01
    """Mean KL, in nats, that the penalty aims at."""
    max_kl: PositiveFloat | None = None
    """Mean KL, in nats, beyond which the actor's passes over a batch stop. None: never."""
    minibatch_size: PositiveInt = 128
    """Env steps of each gradient step."""
    num_epochs: PositiveInt = 5
    """Passes of the actor over each batch. (The length of a run is `stop.iterations`.)"""
    critic_num_epochs: PositiveInt | None = None
    """Passes of the critic over each batch. None: as many as the actor. A critic that reads the
    history learns more from a pass than an MLP does, and a pass costs more."""
    critic_minibatch_size: PositiveInt | None = None
    """Env steps of each gradient step of the critic. None: `minibatch_size`, as for the actor."""

    @property
    def critic_passes(self) -> int:
        return self.critic_num_epochs or self.num_epochs

    @property
    def env_steps_per_critic_step(self) -> int:
        return self.critic_minibatch_size or self.minibatch_size

    @property
    def env_steps_per_actor_step(self) -> int:
        return self.minibatch_size


class A2CSettings(OnPolicySettings):
    """Short fragments, RMSprop and λ 1, as in Stable-Baselines3, whose fragments have 5 steps."""

    kind: ClassVar[str] = "a2c"
    implementation: ClassVar[str] = "rl_service.algorithms.a2c:A2C"

    actor_lr: PositiveFloat = 7e-4
    """Learning rate of the actor."""
    critic_lr: PositiveFloat = 7e-4
    lambda_: UnitFloat = 1.0
    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
    """`rmsprop` has α 0.99 and ε 1e-5."""
    entropy_coeff: NonNegativeFloat = 0.0
    """Weight of the entropy bonus."""
    rollout_fragment_length: PositiveInt = 8
    """Steps that each environment takes between two gradient steps: the n of n-step. A gradient
    step sees these steps of all environments of all workers, and `train_batch_size` must be a
    multiple of their number."""
    normalize_advantages: bool = False

    def env_steps_per_update(self, num_envs: int) -> int:
        return self.rollout_fragment_length * num_envs


class TRPOSettings(OnPolicySettings):
    """Defaults are sb3-contrib's (KL limit, conjugate gradient, line search)."""

    kind: ClassVar[str] = "trpo"
    implementation: ClassVar[str] = "rl_service.algorithms.trpo:TRPO"

    max_kl: PositiveFloat = 0.01
    """δ: largest mean KL, in nats, between the policy before and after an update."""
    cg_iterations: PositiveInt = 15
    """Most steps of conjugate gradient in an update."""
    cg_damping: NonNegativeFloat = 0.1
    """Number that is added to the diagonal of the Fisher matrix."""
    fisher_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of the batch that the Fisher matrix is estimated from."""
    line_search_steps: PositiveInt = 10
    """Most step lengths that the line search tries."""
    line_search_factor: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.8
    """Length of each step tried, relative to the one before."""
    critic_optimizer: Literal["adam", "lbfgs"] = "adam"
    """`adam`: in minibatches. `lbfgs`: on the whole batch at once, with an L2 term. L-BFGS starts
    from scratch with each batch, ignores the settings of Adam, and switches dropout off."""
    critic_num_epochs: PositiveInt = 10
    """Passes of Adam over each batch."""
    minibatch_size: PositiveInt = 128
    """Env steps of each gradient step of Adam."""
    lbfgs_iterations: PositiveInt = 25
    """Most iterations of L-BFGS on each batch."""
    critic_l2: NonNegativeFloat = 1e-3
    """Weight of the squared norm of the critic's parameters, with L-BFGS."""

    @property
    def critic_passes(self) -> int:
        return self.critic_num_epochs

    @property
    def env_steps_per_critic_step(self) -> int:
        return self.train_batch_size if self.critic_optimizer == "lbfgs" else self.minibatch_size


ALGORITHMS = Kinds("algorithm", OnPolicySettings, A2CSettings, PPOSettings, TRPOSettings)
"""What `algorithm.name` accepts."""
AlgorithmField = Annotated[SerializeAsAny[OnPolicySettings], ALGORITHMS.validator(trusted=True)]
"""An algorithm in the settings of a run."""
