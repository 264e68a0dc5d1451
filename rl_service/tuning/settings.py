"""The tuning file: an experiment's fixed settings, what is searched, how, and for how long."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rl_service.config.group import Group, NonNegativeInt, PositiveFloat, PositiveInt
from rl_service.tuning.domains import Domain

PLACEMENT_KEYS = (
    "resources.num_env_runners",
    "resources.min_env_runners",
    "resources.max_env_runners",
    "resources.num_cpus_per_env_runner",
    "resources.num_gpus",
)
"""Settings that say which CPUs and GPUs a trial has from its start to its end."""

SCORE = "score"
"""Mean over a trial's seeds of the newest evaluation's mean return (without evaluations: of the
training return). What searchers and schedulers compare."""
BEST_SCORE = "best_score"
"""Mean over a trial's seeds of each seed's best score so far. What the result is ranked by, since
a seed's best policy is what it leaves."""
SPEED = "env_steps_per_s"
"""Env steps of all of a trial's seeds by the seconds that their iterations took."""

ENDED = "trainings_ended"
"""Whether a trial's trainings have reached their own ends. Tune's `done` also says that a scheduler
has stopped them."""


class SearchSettings(Group):
    name: Literal["tpe", "random"] = "tpe"
    """`tpe`: Optuna's tree-structured Parzen estimator (arXiv 2304.11127)."""
    objectives: Annotated[tuple[Literal["score", "env_steps_per_s"], ...], Field(min_length=1)] = (
        "score",
    )
    """All are raised. With both, the searcher looks for the best trades between them."""


class NoScheduler(Group):
    """Every trial runs to its end."""

    name: Literal["none"] = "none"


class ASHASettings(Group):
    """Asynchronous successive halving (arXiv 1810.05934)."""

    name: Literal["asha"] = "asha"
    grace_env_steps: PositiveInt
    """Steps that every trial gets."""
    reduction_factor: Annotated[float, Field(gt=1.0)] = 3.0
    """At each rung one in so many goes on, and the next rung is so many times further."""


class MedianSettings(Group):
    """Stops a trial whose best score is below the median of the others' averages so far."""

    name: Literal["median"] = "median"
    grace_env_steps: PositiveInt
    min_samples: PositiveInt = 3
    """Trials that a median takes."""


class PBTSettings(Group):
    """Population-based training (arXiv 1711.09846).

    The worst trials go on from the weights of the best, with their `algorithm.*` settings changed.
    """

    name: Literal["pbt"] = "pbt"
    interval_env_steps: PositiveInt
    """Steps between two chances to be replaced."""
    quantile_fraction: Annotated[float, Field(gt=0.0, le=0.5)] = 0.25
    """Share of trials at either end."""
    resample_probability: Annotated[float, Field(ge=0.0, le=1.0)] = 0.25
    """Chance that a setting is drawn anew instead of changed by a fifth."""


SchedulerSettings = Annotated[
    NoScheduler | ASHASettings | MedianSettings | PBTSettings,
    Field(discriminator="name"),
]


class TuningSettings(Group):
    name: str | None = None
    """Of the experiment. None: the file's name."""
    config: str | None = None
    """A settings file, or the name of a shipped one, that the fixed settings start from."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Fixed settings on top of it: the groups of a settings file, and the seed."""
    search_space: dict[str, Domain] = Field(default_factory=dict)
    """By setting, `group.key`."""
    points_to_evaluate: list[dict[str, Any]] = Field(default_factory=list)
    """Values to try first, by setting; those that a point leaves out are drawn."""
    num_samples: PositiveInt = 16
    """Trials, `points_to_evaluate` included."""
    num_seeds: PositiveInt = 1
    """Trainings of each trial, whose scores are averaged, with `seed`, `seed` + 100, …"""
    max_concurrent: PositiveInt | None = None
    """Trials at a time. None: as many as fit. Not for populations, which need all their members."""
    time_budget_s: PositiveFloat | None = None
    """After so long no trial goes on; the best so far is the result. None: no limit."""
    max_failures: NonNegativeInt = 2
    """Times that a trial whose process or node dies starts again from its last checkpoint."""
    search_alg: SearchSettings = SearchSettings()
    scheduler: SchedulerSettings = NoScheduler()
