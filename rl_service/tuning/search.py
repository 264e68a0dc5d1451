"""Ray Tune's searchers and schedulers for a plan."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import optuna
from optuna.distributions import FloatDistribution, IntDistribution
from ray import tune
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)
from ray.tune.search import BasicVariantGenerator
from ray.tune.search.optuna import OptunaSearch

from rl_service.common.metrics import ENV_STEPS
from rl_service.tuning.domains import Coordinate, Domain
from rl_service.tuning.plan import (
    SCORE,
    ASHASettings,
    MedianSettings,
    PBTSettings,
    TuningPlan,
    population_keys,
)
from rl_service.tuning.space import SearchSpace

_MAX_STEPS = 32
"""Whole numbers of a range in which a population moves by one; a longer one is crossed faster."""
_MAX_DRAWS = 100
"""Tries to draw values that do not contradict each other, before a trial is left to fail."""


def search_arguments(plan: TuningPlan) -> dict[str, Any]:
    """The arguments of `tune.run` that say where configurations come from."""
    seed = plan.base.seed
    if isinstance(plan.tuning.scheduler, PBTSettings):
        # A population is drawn once; Tune takes no searcher beside these schedulers.
        generator = BasicVariantGenerator(points_to_evaluate=plan.points, random_state=seed)
        config = {key: _ray_domain(domain) for key, domain in plan.space.domains.items()}
        return {"search_alg": generator, "config": config}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    objectives = list(plan.tuning.search_alg.objectives)
    one = len(objectives) == 1
    searcher = OptunaSearch(
        space=_DefineByRun(plan.space),
        metric=objectives[0] if one else objectives,
        mode="max" if one else ["max"] * len(objectives),
        points_to_evaluate=plan.points or None,
        sampler=_sampler(plan.tuning.search_alg.name, seed),
    )
    return {"search_alg": searcher}


def build_scheduler(plan: TuningPlan) -> TrialScheduler:
    """The scheduler; it counts env steps."""
    scheduler = plan.tuning.scheduler
    common = {"time_attr": ENV_STEPS, "mode": "max"}
    if isinstance(scheduler, ASHASettings):
        return ASHAScheduler(
            **common,
            metric=SCORE,
            max_t=plan.base.total_env_steps,
            grace_period=scheduler.grace_env_steps,
            reduction_factor=scheduler.reduction_factor,
        )
    if isinstance(scheduler, MedianSettings):
        return MedianStoppingRule(
            **common,
            metric=SCORE,
            grace_period=scheduler.grace_env_steps,
            min_samples_required=scheduler.min_samples,
        )
    if isinstance(scheduler, PBTSettings):
        domains = _changeable(plan)
        return PopulationBasedTraining(
            **common,
            metric=SCORE,
            perturbation_interval=scheduler.interval_env_steps,
            quantile_fraction=scheduler.quantile_fraction,
            resample_probability=scheduler.resample_probability,
            hyperparam_mutations={key: _mutation(domain) for key, domain in domains.items()},
            custom_explore_fn=partial(_repaired, plan.space, domains),
            log_config=False,
        )
    return FIFOScheduler()


class _DefineByRun:
    """Asks Optuna for the settings that apply to a trial, one by one."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space

    def __call__(self, trial: Any) -> None:
        self._space.draw(partial(_suggest, trial))


def _suggest(trial: Any, key: str, domain: Domain) -> Coordinate:
    distribution = domain.distribution
    if isinstance(distribution, FloatDistribution):
        return trial.suggest_float(key, distribution.low, distribution.high, log=distribution.log)
    if isinstance(distribution, IntDistribution):
        return trial.suggest_int(key, distribution.low, distribution.high)
    return trial.suggest_categorical(key, domain.coordinates)


def _sampler(name: str, seed: int) -> optuna.samplers.BaseSampler:
    if name == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    # With a constant liar, trials that run at the same time know of each other.
    return optuna.samplers.TPESampler(seed=seed, constant_liar=True)


def _changeable(plan: TuningPlan) -> dict[str, Domain]:
    return {key: plan.space.domains[key] for key in population_keys(plan.tuning)}


def _ray_domain(domain: Domain) -> Any:
    distribution = domain.distribution
    if isinstance(distribution, FloatDistribution):
        draw = tune.loguniform if distribution.log else tune.uniform
        return draw(distribution.low, distribution.high)
    if isinstance(distribution, IntDistribution):
        return tune.randint(distribution.low, distribution.high + 1)
    return tune.choice(domain.coordinates)


def _mutation(domain: Domain) -> Any:
    """A range, whose values are changed by a fifth, or a list, in which they move by one.

    A fifth more or less than a small whole number is that number.
    """
    distribution = domain.distribution
    if isinstance(distribution, IntDistribution):
        numbers = range(distribution.low, distribution.high + 1)
        if domain.kind == "power_of_two" or len(numbers) <= _MAX_STEPS:
            return list(numbers)
    return domain.coordinates if domain.kind == "choice" else _ray_domain(domain)


def _repaired(
    space: SearchSpace, domains: Mapping[str, Domain], config: dict[str, Any]
) -> dict[str, Any]:
    """The configuration within its bounds, drawn again if a change has led to a contradiction.

    Tune changes each value without regard to its bounds and to the other values.
    """
    config = _within_bounds(domains, config)
    for _ in range(_MAX_DRAWS):
        if space.are_settings(space.values(config)):
            break
        config |= {key: _ray_domain(domain).sample() for key, domain in domains.items()}
    return config


def _within_bounds(domains: Mapping[str, Domain], config: dict[str, Any]) -> dict[str, Any]:
    for key, domain in domains.items():
        if domain.kind != "choice":
            low, high = domain.coordinates
            config[key] = min(max(config[key], low), high)
    return config
