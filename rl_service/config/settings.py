"""The settings of a run: seven groups and a seed, strict and immutable.

They are checked once, here and in `load`; code after that trusts them. Units are in the names
(`*_s`) or in the text under a field. Steps are env steps unless a name says otherwise. The texts
under the fields are the page `docs/settings.md`, which `make docs` writes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from custom_models.configs import GPT2CriticConfig, LLMPolicyConfig, ModelField
from custom_models.kinds import (
    Group,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)
from rl_service.config.algorithms import AlgorithmField, PPOSettings


class EnvSettings(Group):
    id: str = "LunarLander-v3"
    """A gymnasium id, or `module:Class` or `module:function` that makes an environment."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments for the environment's constructor."""
    backend: Literal["gymnasium", "envpool"] = "gymnasium"
    """What steps the environments in training: gymnasium one after the other, or EnvPool all of a
    worker at once, in C++. Evaluations always use gymnasium."""
    max_episode_steps: Annotated[int, Field(gt=0, lt=2**31)] | None = None
    """Time limit in env steps. An episode that reaches it is truncated, not terminated. None: the
    environment's own limit."""
    describe: Annotated[str, Field(max_length=200)] | None = None
    """What makes an observation a text, for a language model: `info` takes `info["text"]`, and
    `module:function` is called with the environment's observation and annotated to return a `str`.
    None: observations are numbers, or those of a `Text` space as they are."""
    max_text_length: Annotated[int, Field(gt=0, le=2**15)] = 512
    """Characters of a text, its admissible actions included. An episode fails at a longer one."""
    hide: Annotated[tuple[NonNegativeInt, ...], Field(max_length=10_000)] = ()
    """Entries of the flattened observation that are set to zero, such as velocities: the policy
    never sees them, neither in training nor where it is served."""
    flatten_images: bool = False
    """Read each pixel of an image as a number. Otherwise environments with images are refused."""
    action_masks: bool = True
    """Take only actions that the environment allows, where it says so: in `info["action_mask"]`, or
    in the entry `action_mask` of a Dict observation. No: ignore what it says."""
    observe_reward: bool = False
    """Append to each observation the reward that came with it, 0 after a reset, for a policy that
    learns from its rewards within an episode. Whoever asks the served policy sends it, too."""
    observation_filter: Literal["NoFilter", "MeanStdFilter"] = "NoFilter"
    """`MeanStdFilter` normalises observations by their running mean and deviation."""
    normalize_returns: bool = False
    """Divide rewards by the running deviation of the discounted return, for learning only."""
    max_failed_episodes: NonNegativeInt = 100
    """Episodes that may fail with an exception, NaN or infinity. One more ends the run."""


THROUGHPUT = "throughput"
"""The built-in scaling policy; others are `module:function`."""


class ElasticitySettings(Group):
    """Part of the group `resources`, beside `num_env_runners`, the workers at the start."""

    max_env_runners: PositiveInt | None = None
    """Most rollout workers, at most the vector steps of a batch. None: the number is fixed at
    `num_env_runners`."""
    min_env_runners: PositiveInt = 1
    """Fewest rollout workers. They are asked for even if the cluster has no room at the moment."""
    autoscaling_policy: str = THROUGHPUT
    """`throughput` decides from measured times; `module:function` is a function of your own."""
    target_sampling_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    """Share of an iteration in which the learner may wait for samples."""
    up_delay_iterations: PositiveInt = 1
    """Iterations in a row that must ask for more workers before some are added."""
    down_delay_iterations: PositiveInt = 10
    """Iterations in a row that must ask for fewer workers before one leaves."""
    max_scaling_step: PositiveInt = 2
    """Most workers that are added or removed at a time."""
    max_worker_hours: PositiveFloat | None = None
    """Worker-hours that the run may use. Once they are spent, it continues with
    `min_env_runners`. None: no limit."""
    worker_timeout_s: PositiveFloat = 120.0
    """Seconds without a finished step or reset in any environment of a worker, after which the
    worker counts as hung and is replaced."""
    lost_timeout_s: PositiveFloat = 600.0
    """Seconds that a run without any rollout worker waits for one before it saves and ends. A
    worker that has its CPUs may take as long to start, and 180 s at least."""

    @model_validator(mode="before")
    @classmethod
    def _without_what_was_removed(cls, values: Any) -> Any:
        """Drops `autoscaling_schedule: {}`, which earlier releases have written."""
        if isinstance(values, dict) and values.get("autoscaling_schedule") == {}:
            return {key: value for key, value in values.items() if key != "autoscaling_schedule"}
        return values

    @property
    def is_elastic(self) -> bool:
        """Whether the number of workers may change."""
        return self.max_env_runners is not None


class ResourceSettings(ElasticitySettings):
    num_env_runners: NonNegativeInt = 2
    """Rollout workers; with `max_env_runners`, those at the start of the run. 0: sample in the
    learner's own process, reproducible to the bit."""
    num_envs_per_env_runner: PositiveInt = 8
    """Environments that each rollout worker steps together."""
    num_cpus_per_env_runner: NonNegativeFloat = 1.0
    """CPUs that Ray reserves for each rollout worker."""
    num_learners: PositiveInt = 1
    """Processes that learn together: each computes the gradient of its part of every minibatch,
    and the result is that of one learner. The first is the training's own process; Ray reserves a
    CPU for each of the others."""
    num_gpus: NonNegativeInt = 0
    """GPUs of the learners: 0, or one for each. Rollout workers stay on CPUs; on the first GPU, one
    more process acts for all those of a language model."""
    learner_precision: Literal["float32", "bfloat16"] = "float32"
    """`bfloat16`: on a GPU, the critic and a language model compute under autocast; weights and
    small nets stay float32."""
    learner_compile: bool = False
    """Compile the critic with `torch.compile` on a GPU. The first iteration takes a minute more."""
    learner_threads: PositiveInt = 1
    """Threads of torch in each learner."""
    worker_threads: PositiveInt = 1
    """Threads of torch in each rollout worker."""

    @property
    def num_workers_to_begin_with(self) -> int:
        """Rollout workers that a run needs before it can start."""
        return self.min_env_runners if self.is_elastic else self.num_env_runners

    def num_workers_after(self, num_workers: int) -> int:
        """Rollout workers that a resumed run starts with.

        Args:
            num_workers: how many it had.
        """
        if self.max_env_runners is None:
            return self.num_env_runners
        return min(max(num_workers, self.min_env_runners), self.max_env_runners)


class StopSettings(Group):
    """The run ends at whichever limit it reaches first.

    A file, flag or `--set` that gives one of `iterations` and `env_steps` removes the other.
    """

    iterations: PositiveInt | None = 150
    """Iterations: rounds of sampling and learning."""
    env_steps: PositiveInt | None = None
    """Env steps, over all rollout workers."""
    episode_return_mean: float | None = None
    """Mean return of the last 100 training episodes that is good enough."""
    time_s: PositiveFloat | None = None
    """Seconds of iterations (`time_total_s`), evaluations not included."""

    def is_met(
        self, *, iteration: float, env_steps: float, time_s: float, return_mean: float | None
    ) -> bool:
        """Whether a run that has come this far has reached one of the limits."""
        return (
            (self.iterations is not None and iteration >= self.iterations)
            or (self.env_steps is not None and env_steps >= self.env_steps)
            or (self.time_s is not None and time_s >= self.time_s)
            or (
                self.episode_return_mean is not None
                and return_mean is not None
                and return_mean >= self.episode_return_mean
            )
        )


MAX_EVALUATED_STEPS = 10_000
"""Env steps that an episode of an evaluation may take by default."""
CUT_REMEDY = (
    "if they never end, set env.max_episode_steps; if they need more steps, raise "
    "evaluation.max_episode_steps"
)
"""What to do about episodes that evaluations cut off."""


class EvaluationSettings(Group):
    interval: NonNegativeInt = 5
    """Iterations between evaluations, which choose the best policy. 0: no evaluations; the
    training return chooses."""
    num_episodes: PositiveInt = 10
    """Episodes of each evaluation."""
    final_num_episodes: NonNegativeInt = 20
    """Episodes that the best policy plays at the end of the run; episode i starts from seed + i.
    0: none."""
    max_episode_steps: PositiveInt = MAX_EVALUATED_STEPS
    """Env steps after which an evaluation cuts an episode off and reports it. This is not a time
    limit of the environment, which is `env.max_episode_steps`."""


class TrackingSettings(Group):
    output_dir: str = "."
    """Folder that receives `runs/` and `checkpoints/`."""
    experiment: str | None = None
    """Name of the folder under `runs/`. None: `<model>_<algorithm>_<env>`."""
    registry: str | None = None
    """Policy registry that receives the best policy: a folder, or a URI that fsspec knows.
    None: `$RL_SERVICE_REGISTRY`, or `policies` in the output folder."""
    checkpoint_interval: PositiveInt = 10
    """Iterations between checkpoints of the training state."""
    keep_checkpoints: PositiveInt = 2
    """Newest checkpoints that are kept."""
    tensorboard: bool = True
    """Write TensorBoard events into the run's folder."""
    ray_metrics: bool = True
    """Show the newest numbers at the metrics port of the Ray node, for Prometheus."""
    wandb_project: str | None = None
    """Weights & Biases project. None: off. Without an API key the run is kept offline."""
    wandb_entity: str | None = None
    """Weights & Biases entity. None: the account's default."""


class Settings(Group):
    env: EnvSettings = EnvSettings()
    model: ModelField = GPT2CriticConfig()
    algorithm: AlgorithmField = PPOSettings()
    resources: ResourceSettings = ResourceSettings()
    stop: StopSettings = StopSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    tracking: TrackingSettings = TrackingSettings()
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 123
    """Seeds everything random."""

    def by_key(self) -> dict[str, Any]:
        """All settings except the seed, as plain values, by the keys that `--set` takes."""
        groups = self.model_dump(mode="json", exclude={"seed"})
        return {f"{group}.{key}": value for group in groups for key, value in groups[group].items()}

    @property
    def has_inference_actor(self) -> bool:
        """Whether one process on the learner's GPU acts for all rollout workers.

        A language model is what a GPU computes a hundred times as fast as a worker's core. A net
        of the user's own may write prompts in another way, so the workers keep that themselves.
        """
        resources = self.resources
        on_gpu = resources.num_gpus > 0 and resources.num_env_runners > 0
        return on_gpu and self.model.implementation == LLMPolicyConfig.implementation

    @property
    def env_steps_per_update(self) -> int:
        """Env steps, over all workers, between two updates of the policy.

        It follows from the number of workers at the start: workers that join or leave later share
        the same batch.
        """
        num_envs = max(1, self.resources.num_env_runners) * self.resources.num_envs_per_env_runner
        return self.algorithm.env_steps_per_update(num_envs)

    @property
    def total_env_steps(self) -> int | None:
        """Env steps after which the run ends at the latest; None if only time or return can."""
        limits = [self.stop.env_steps]
        if self.stop.iterations is not None:
            limits.append(self.stop.iterations * self.algorithm.train_batch_size)
        known = [limit for limit in limits if limit is not None]
        return min(known) if known else None
