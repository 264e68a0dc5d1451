"""How many rollout workers a run may have, who decides, and when a worker counts as hung."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from rl_service.config.group import Group, PositiveFloat, PositiveInt

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
