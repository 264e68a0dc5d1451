"""The settings of a run: seven groups and a seed, strict and immutable.

Checked once, here and in `load`; code after that trusts them. Units stand in the names
(`*_s`) or in the comment under a field. Counts of steps are env steps unless a name says more.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from custom_models.configs import GPT2CriticConfig, ModelField
from rl_service.config.algorithms import AlgorithmField, PPOSettings
from rl_service.config.group import (
    Group,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)


class EnvSettings(Group):
    id: str = "LunarLander-v3"
    """A gymnasium id, or `module:Class` / `module:function` that makes an env."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    max_episode_steps: Annotated[int, Field(gt=0, lt=2**31)] | None = None
    """Time limit; an episode that reaches it is truncated, not terminated. None: the env's own."""
    observation_filter: Literal["NoFilter", "MeanStdFilter"] = "NoFilter"
    normalize_returns: bool = False
    """Divide rewards by the running deviation of the discounted return (learning only)."""
    max_failed_episodes: NonNegativeInt = 100
    """Episodes that may fail with an exception, NaN or infinity; one more ends the run."""


THROUGHPUT = "throughput"
"""The scaling policy that is there by name; others are `module:function`."""


class ElasticitySettings(Group):
    """Part of the group `resources`; read with `num_env_runners`, the workers at the start."""

    max_env_runners: PositiveInt | None = None
    """Most rollout workers. None: their number stays `num_env_runners`."""
    min_env_runners: PositiveInt = 1
    """Fewest, also where the cluster has no room for them at the moment."""
    autoscaling_policy: str = THROUGHPUT
    """`throughput`: from measured times. `module:function`: your own."""
    target_sampling_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    """Share of an iteration in which the learner may wait for samples."""
    up_delay_iterations: PositiveInt = 1
    """Iterations in a row that must ask for more workers before there are more."""
    down_delay_iterations: PositiveInt = 10
    """Iterations in a row that must ask for fewer workers before one leaves."""
    max_scaling_step: PositiveInt = 2
    """Most workers that come or go at a time."""
    max_worker_hours: PositiveFloat | None = None
    """Worker-hours that the run may take; once spent, `min_env_runners` go on. None: no limit."""
    worker_timeout_s: PositiveFloat = 120.0
    """A worker none of whose environments finished a step or a reset for that long is hung and is
    replaced."""
    lost_timeout_s: PositiveFloat = 600.0
    """How long a run waits for a rollout worker when none is left, before it saves and ends."""

    @model_validator(mode="before")
    @classmethod
    def _without_what_was_removed(cls, values: Any) -> Any:
        """Runs and experiments of earlier releases have written `autoscaling_schedule: {}`."""
        if isinstance(values, dict) and values.get("autoscaling_schedule") == {}:
            return {key: value for key, value in values.items() if key != "autoscaling_schedule"}
        return values

    @property
    def is_elastic(self) -> bool:
        """Whether the number of workers may change."""
        return self.max_env_runners is not None


class ResourceSettings(ElasticitySettings):
    num_env_runners: NonNegativeInt = 2
    """Rollout workers, at the start of the run where max_env_runners lets their number change.
    0: sample in the learner's own process (reproducible to the bit)."""
    num_envs_per_env_runner: PositiveInt = 8
    num_cpus_per_env_runner: NonNegativeFloat = 1.0
    num_gpus: Annotated[int, Field(ge=0, le=1)] = 0
    """GPUs of the learner."""
    learner_precision: Literal["float32", "bfloat16"] = "float32"
    """`bfloat16`: on a GPU, autocast of the critic and of a language model; weights and small
    nets stay float32."""
    learner_compile: bool = False
    """Compile the critic with `torch.compile` on a GPU; the first iteration takes a minute more."""
    learner_threads: PositiveInt = 1
    worker_threads: PositiveInt = 1

    @property
    def num_workers_to_begin_with(self) -> int:
        """Rollout workers that a run cannot begin without."""
        return self.min_env_runners if self.is_elastic else self.num_env_runners

    def num_workers_after(self, num_workers: int) -> int:
        """Rollout workers that a resumed run begins with.

        Args:
            num_workers: that it had.
        """
        if self.max_env_runners is None:
            return self.num_env_runners
        return min(max(num_workers, self.min_env_runners), self.max_env_runners)


class StopSettings(Group):
    """The run ends at whichever comes first.

    A file, flag or `--set` that gives one of `iterations` and `env_steps` takes the other away.
    """

    iterations: PositiveInt | None = 150
    env_steps: PositiveInt | None = None
    episode_return_mean: float | None = None
    time_s: PositiveFloat | None = None
    """Limit of `time_total_s`: the time of iterations alone, without evaluations."""


MAX_EVALUATED_STEPS = 10_000
"""Env steps that an episode of an evaluation may take unless the settings say another number."""
CUT_REMEDY = (
    "if they never end, set env.max_episode_steps; if they need more steps, raise "
    "evaluation.max_episode_steps"
)
"""What to do about episodes that evaluations cut off."""


class EvaluationSettings(Group):
    interval: NonNegativeInt = 5
    """Iterations between evaluations; the best policy is chosen by them. 0: none, and the best
    is chosen by the training return."""
    num_episodes: PositiveInt = 10
    final_num_episodes: NonNegativeInt = 20
    """Episodes that the best policy plays at the end of a run; episode i starts from seed + i.
    0: none."""
    max_episode_steps: PositiveInt = MAX_EVALUATED_STEPS
    """An episode that is still running after as many env steps is cut off, and reported. Not a
    time limit of the environment: that is `env.max_episode_steps`."""


class TrackingSettings(Group):
    output_dir: str = "."
    """Folder that receives `runs/` and `checkpoints/`."""
    experiment: str | None = None
    """Name of the folder under `runs/`. None: `<model>_<algorithm>_<env>`."""
    registry: str | None = None
    """Policy registry that the best policy goes into: a folder or a URI of fsspec.
    None: `$RL_SERVICE_REGISTRY`, or `policies` in the output folder."""
    checkpoint_interval: PositiveInt = 10
    """Iterations between checkpoints of the training state."""
    keep_checkpoints: PositiveInt = 2
    tensorboard: bool = True
    ray_metrics: bool = True
    """Show the newest numbers at the metrics port of Ray's node, for Prometheus."""
    wandb_project: str | None = None
    """Weights & Biases project. None: off. Without an API key the run is kept offline."""
    wandb_entity: str | None = None


class Settings(Group):
    env: EnvSettings = EnvSettings()
    model: ModelField = GPT2CriticConfig()
    algorithm: AlgorithmField = PPOSettings()
    resources: ResourceSettings = ResourceSettings()
    stop: StopSettings = StopSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    tracking: TrackingSettings = TrackingSettings()
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 123
    """Below 2**31, which every library that it seeds can take."""

    def by_key(self) -> dict[str, Any]:
        """All settings but the seed, as plain values, by the keys that `--set` takes."""
        groups = self.model_dump(mode="json", exclude={"seed"})
        return {f"{group}.{key}": value for group in groups for key, value in groups[group].items()}

    @property
    def env_steps_per_update(self) -> int:
        """Env steps, over all workers, between two updates of the policy.

        Made of the workers at the start: those that come and go share out the same batch.
        """
        num_envs = max(1, self.resources.num_env_runners) * self.resources.num_envs_per_env_runner
        return self.algorithm.env_steps_per_update(num_envs)

    @property
    def total_env_steps(self) -> int | None:
        """Env steps after which the run ends at the latest; None if only time or return end it."""
        limits = [self.stop.env_steps]
        if self.stop.iterations is not None:
            limits.append(self.stop.iterations * self.algorithm.train_batch_size)
        known = [limit for limit in limits if limit is not None]
        return min(known) if known else None
