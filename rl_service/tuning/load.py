"""Reads a tuning file and checks all that can be known before anything starts."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from rl_service.common.errors import SettingsError, TuningError
from rl_service.common.files import as_folder_name
from rl_service.common.text import nearest, one_line
from rl_service.config.layers import Layer
from rl_service.config.load import load_settings
from rl_service.config.presets import resolve_settings_file
from rl_service.config.settings import Settings
from rl_service.config.yaml_text import read_yaml_mapping
from rl_service.training.checks import check_machine, check_output
from rl_service.tuning.domains import Domain
from rl_service.tuning.settings import (
    PLACEMENT_KEYS,
    ASHASettings,
    MedianSettings,
    PBTSettings,
    SearchSettings,
    TuningSettings,
)
from rl_service.tuning.space import Coordinates, SearchSpace, check_point, check_space
from rl_service.tuning.storage import PLAN_FILE, ExperimentStorage

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


def load_plan(file: Path, changed: Mapping[str, Any] | None = None) -> TuningPlan:
    """Loads a tuning file.

    Args:
        file: a YAML file, or the name of a shipped one (`tuning/CartPole-v1`).
        changed: top-level keys that take the place of the file's; None is not given.

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
    content |= {key: value for key, value in (changed or {}).items() if value is not None}
    given = {key: value for key, value in content.items() if value is not None}  # `settings:`
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
    scheduler = tuning.scheduler
    if isinstance(scheduler, ASHASettings):
        return _asha_problems(scheduler, base)
    if isinstance(scheduler, PBTSettings):
        return _population_problems(tuning)
    return []


def _asha_problems(scheduler: ASHASettings, base: Settings) -> list[str]:
    total = base.total_env_steps
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
    """Searched settings that a training can change as it goes on."""
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


def new_experiment(plan: TuningPlan, storage: str) -> ExperimentStorage:
    """Makes the folder of a new experiment.

    Raises:
        OutputError: if it cannot be written; nothing is left of it then.
    """
    name = f"{as_folder_name(plan.name)}_{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    experiment = ExperimentStorage.create(storage, name)
    try:
        experiment.write(PLAN_FILE, plan.dump())
    except BaseException:
        experiment.remove()
        raise
    return experiment


def open_experiment(experiment: str) -> tuple[TuningPlan, ExperimentStorage]:
    """An experiment to go on with, and its plan.

    Raises:
        TuningError: if there is none, or its plan cannot be read or does not work here.
    """
    storage = ExperimentStorage.open(experiment)
    with tempfile.TemporaryDirectory(prefix="rl-service-tuning-") as folder:
        copy = Path(folder, PLAN_FILE)
        copy.write_text(storage.read(PLAN_FILE), encoding="utf-8")
        try:
            return load_plan(copy), storage
        except SettingsError as error:
            raise TuningError(
                f"{storage}/{PLAN_FILE} cannot be resumed here ({error}); fix that, in the "
                f"file or on this machine, or start a new experiment"
            ) from error
