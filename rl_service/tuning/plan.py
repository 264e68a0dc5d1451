"""The tuning file: what is fixed, what is searched, how, and for how long; and its checks."""

from __future__ import annotations

import secrets
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError

from custom_models.kinds import Group, NonNegativeInt, PositiveFloat, PositiveInt
from custom_models.text import nearest, one_line
from rl_service.common.errors import SettingsError, TuningError
from rl_service.common.files import as_folder_name
from rl_service.common.storage import Storage
from rl_service.config.layers import Layer
from rl_service.config.load import load_settings
from rl_service.config.presets import resolve_settings_file
from rl_service.config.settings import Settings
from rl_service.config.yaml_text import read_yaml_mapping
from rl_service.training.checks import check_machine, check_output
from rl_service.tuning.domains import Domain
from rl_service.tuning.space import Coordinates, SearchSpace, check_point, check_space
from rl_service.tuning.storage import PLAN_FILE, experiment_storage, find_experiment

PLACEMENT_KEYS = (
    "resources.num_env_runners",
    "resources.min_env_runners",
    "resources.max_env_runners",
    "resources.num_cpus_per_env_runner",
    "resources.num_learners",
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
    """What to maximise. With both, the searcher looks for the best trade-offs."""


class NoScheduler(Group):
    """Every trial runs to its end."""

    name: Literal["none"] = "none"


class ASHASettings(Group):
    """Asynchronous successive halving (arXiv 1810.05934)."""

    name: Literal["asha"] = "asha"
    grace_env_steps: PositiveInt
    """Env steps that every trial gets."""
    reduction_factor: Annotated[float, Field(gt=1.0)] = 3.0
    """At each rung one in so many trials continues, to the next rung so many times further."""


class MedianSettings(Group):
    """Stops a trial whose best score is below the median of the others' averages so far."""

    name: Literal["median"] = "median"
    grace_env_steps: PositiveInt
    """Env steps that every trial gets."""
    min_samples: PositiveInt = 3
    """Fewest other trials that a median needs."""


class PBTSettings(Group):
    """Population-based training (arXiv 1711.09846).

    The worst trials continue from the weights of the best, with changed `algorithm.*` settings.
    """

    name: Literal["pbt"] = "pbt"
    interval_env_steps: PositiveInt
    """Env steps between two chances to be replaced."""
    quantile_fraction: Annotated[float, Field(gt=0.0, le=0.5)] = 0.25
    """Share of trials that count as the best, and as the worst."""
    resample_probability: Annotated[float, Field(ge=0.0, le=1.0)] = 0.25
    """Probability that a setting is drawn again instead of changed by a fifth."""


SchedulerSettings = Annotated[
    NoScheduler | ASHASettings | MedianSettings | PBTSettings,
    Field(discriminator="name"),
]


class TuningSettings(Group):
    name: str | None = None
    """Name of the experiment. None: the file's name."""
    config: str | None = None
    """Settings file, or name of a shipped one, that the fixed settings start from."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Fixed settings on top of `config`: the groups of a settings file, and the seed."""
    search_space: dict[str, Domain] = Field(default_factory=dict)
    """What is searched: a domain for each setting, `group.key`."""
    points_to_evaluate: list[dict[str, Any]] = Field(default_factory=list)
    """Points that are tried first, each a value by setting; settings that a point leaves out are
    drawn."""
    num_samples: PositiveInt = 16
    """Trials, `points_to_evaluate` included. `--num-samples` overrides it."""
    num_seeds: PositiveInt = 1
    """Trainings of each trial, with `seed`, `seed` + 100, …; their scores are averaged."""
    max_concurrent: PositiveInt | None = None
    """Trials at a time. None: as many as fit. Refused for `pbt`, which needs all its members."""
    time_budget_s: PositiveFloat | None = None
    """Seconds after which all trials stop; the best so far is the result. None: no limit."""
    max_failures: NonNegativeInt = 2
    """Restarts of a trial whose process or node dies, or that lost all its rollout workers."""
    search_alg: SearchSettings = SearchSettings()
    """How points are chosen."""
    scheduler: SchedulerSettings = NoScheduler()
    """What stops trials early."""


_NOT_CHANGEABLE = ("algorithm.name", "algorithm.optimizer", "algorithm.critic_optimizer")
_UNION_TAGS = ("none", "asha", "median", "pbt")


@dataclass(frozen=True)
class TuningPlan:
    """An experiment that was checked."""

    name: str
    tuning: TuningSettings
    space: SearchSpace
    points: list[Coordinates]
    """`points_to_evaluate`, as searchers want them."""
    notes: list[str]
    """What the user should know of how the settings came about."""

    @property
    def base(self) -> Settings:
        """The settings that are not searched."""
        return self.space.base

    def dump(self) -> str:
        """The plan as a tuning file that says everything, presets resolved."""
        settings = {"name": self.name, "settings": self.base.model_dump(mode="json")}
        space = {key: domain.dump() for key, domain in self.space.domains.items()}
        rest = self.tuning.model_dump(
            mode="json", exclude={"name", "config", "settings", "search_space"}
        )
        # A null of the file's own keys says what leaving it out says; one of a point is a value.
        given = {key: value for key, value in rest.items() if value is not None}
        return yaml.safe_dump(settings | {"search_space": space} | given, sort_keys=False)


def load_plan(file: Path, num_samples: int | None = None) -> TuningPlan:
    """Loads a tuning file.

    Args:
        file: a YAML file, or the name of a shipped one (`tuning/CartPole-v1`).
        num_samples: takes the place of the file's; None leaves that as it is.

    Raises:
        SettingsError: with all problems of the file's own keys; else with all of the fixed
            settings; else with all others.
    """
    content = read_yaml_mapping(resolve_settings_file(file))
    if "search_space" not in content:
        raise SettingsError(
            f"{file} has no search_space; write a tuning file with `config: {file}` and one, or "
            f"run rl-service train --config {file}"
        )
    given = {key: value for key, value in content.items() if value is not None}  # `settings:`
    if num_samples is not None:
        given["num_samples"] = num_samples
    try:
        tuning = TuningSettings.model_validate(given)
    except ValidationError as error:
        raise SettingsError([_problem(file, each) for each in error.errors()]) from error
    loaded = load_settings(
        config=None if tuning.config is None else Path(tuning.config),
        on_top=Layer(f"settings of {file.as_posix()}", dict(tuning.settings)),
    )
    space = SearchSpace(loaded.settings, dict(tuning.search_space))
    problems = [
        *check_space(space),
        *_scheduler_problems(tuning, loaded.settings),
        *_point_problems(tuning, space),
        *check_machine(loaded.settings),
        *check_output(Path(loaded.settings.tracking.output_dir), "settings.tracking.output_dir"),
    ]
    if problems:
        raise SettingsError(problems)
    points = [space.coordinates(point) for point in tuning.points_to_evaluate]
    return TuningPlan(tuning.name or file.stem, tuning, space, points, loaded.notes)


def _point_problems(tuning: TuningSettings, space: SearchSpace) -> list[str]:
    points = tuning.points_to_evaluate
    found = [problem for point in points for problem in check_point(space, point)]
    if len(points) > tuning.num_samples:
        found.append(
            f"points_to_evaluate has {len(points)} points for num_samples={tuning.num_samples} "
            f"trials, so the last would not be tried; raise num_samples or take points out"
        )
    return list(dict.fromkeys(found))


def _scheduler_problems(tuning: TuningSettings, base: Settings) -> list[str]:
    scheduler, total = tuning.scheduler, base.total_env_steps
    if isinstance(scheduler, PBTSettings):
        return _population_problems(tuning)
    if not isinstance(scheduler, ASHASettings):
        return []
    if total is None:
        return [
            "scheduler asha needs the length of a trial; give settings.stop.env_steps or "
            "settings.stop.iterations"
        ]
    if scheduler.grace_env_steps >= total:
        return [
            f"scheduler.grace_env_steps={scheduler.grace_env_steps} is not below the {total} env "
            f"steps of a whole trial, so none would be stopped early; lower it, or take "
            f"scheduler none"
        ]
    return []


def _population_problems(tuning: TuningSettings) -> list[str]:
    space = tuning.search_space
    found = [
        f"search_space {key}: scheduler pbt changes settings while they run, so none can "
        f"depend on others; leave out its `when`, or take scheduler asha"
        for key, domain in space.items()
        if domain.when
    ]
    found += [
        f"search_space {key}: scheduler pbt hands one trial's settings to others, whose CPUs "
        f"and GPUs stay what they were; fix it under settings, or take scheduler asha"
        for key in PLACEMENT_KEYS
        if key in space
    ]
    if not population_keys(tuning):
        found.append(
            "scheduler pbt changes algorithm.* settings, and search_space has none of them; "
            "add one such as algorithm.actor_lr"
        )
    if tuning.num_samples < 2:
        found.append("scheduler pbt needs a population; give num_samples of at least 2")
    if tuning.max_concurrent is not None:
        found.append(
            "scheduler pbt trains its whole population side by side, as many at a time as fit "
            "and the others by turns, so it takes no max_concurrent; leave that out or lower "
            "num_samples"
        )
    if tuning.search_alg.objectives != ("score",):
        found.append("scheduler pbt has one objective; take search_alg.objectives [score]")
    return found


def population_keys(tuning: TuningSettings) -> list[str]:
    """Searched settings that a training can change as it runs."""
    return [
        key
        for key in tuning.search_space
        if key.startswith("algorithm.") and key not in _NOT_CHANGEABLE
    ]


def _problem(file: Path, error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"] if part not in _UNION_TAGS)
    if error["type"] == "extra_forbidden":
        near = nearest(str(error["loc"][-1]), _known_names(error["loc"]))
        hint = f"did you mean {near}?" if near else "take it out"
        return f"{file}: unknown key {where}; {hint}"
    message = one_line(str(error["msg"])).removeprefix("Value error, ")
    return f"{file}: {where or 'the file'}: {message}"


def _known_names(location: tuple[Any, ...]) -> list[str]:
    schedulers = (ASHASettings, MedianSettings, PBTSettings)
    groups: dict[str, list[str]] = {
        "search_space": list(Domain.model_fields),
        "search_alg": list(SearchSettings.model_fields),
        "scheduler": [field for each in schedulers for field in each.model_fields],
    }
    if len(location) > 1:
        return groups.get(str(location[0]), [])
    return list(TuningSettings.model_fields)


def new_experiment(plan: TuningPlan, parent: str) -> Storage:
    """Makes the folder of a new experiment.

    Args:
        plan: of the experiment.
        parent: a folder, or a URI, that receives its folder.

    Raises:
        OutputError: if it cannot be written; nothing is left of it then.
    """
    name = f"{as_folder_name(plan.name)}_{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    storage = experiment_storage(f"{parent.removesuffix('/')}/{name}")
    try:
        storage.write(PLAN_FILE, plan.dump().encode())
    except BaseException:
        storage.remove()
        raise
    return storage


def open_experiment(reference: str) -> tuple[TuningPlan, Storage]:
    """An experiment to resume, and its plan.

    Args:
        reference: as for `find_experiment`.

    Raises:
        TuningError: if there is none, or its plan cannot be read or does not work here.
    """
    storage = find_experiment(reference)
    with tempfile.TemporaryDirectory(prefix="rl-service-tuning-") as folder:
        copy = Path(folder, PLAN_FILE)
        [content] = storage.read([PLAN_FILE])
        copy.write_bytes(content)
        try:
            return load_plan(copy), storage
        except SettingsError as error:
            raise TuningError(
                f"{storage}/{PLAN_FILE} cannot be resumed here ({error}); fix that, in the "
                f"file or on this machine, or start a new experiment"
            ) from error
