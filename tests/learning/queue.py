"""The experiments of the results page, as docs/results/queue.yaml lists them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from custom_models.kinds import Group, PositiveFloat, PositiveInt
from rl_service.config.load import load_settings
from rl_service.config.settings import Settings
from tests.learning.training import ROOT, Flat

QUEUE = ROOT / "docs" / "results" / "queue.yaml"
NUM_EPISODES = 20
"""Of the evaluation whose mean is a run's return."""
DECISIVE = ("env", "model", "algorithm", "stop", "evaluation")
"""Groups of settings that decide a run's numbers."""


class Reported(Group):
    """A number that was published."""

    value: str
    by: str
    """Who published it."""
    env_steps: PositiveInt | None = None


class Row(Group):
    """An experiment: a preset with changes, trained with several seeds."""

    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    title: str
    config: str
    """A shipped preset."""
    set: Flat = Field(default_factory=dict)
    """Settings that differ from the preset's, by dotted key."""
    env_steps: PositiveInt | None = None
    """Most env steps of a run, if not those of the preset. A run takes whole batches."""
    seeds: tuple[PositiveInt, ...]
    evaluation_seed: PositiveInt | None = None
    """Episode i of the final evaluation starts from this + i. None: from the run's seed + i."""
    report: Reported | None = None
    """What the report has that the experiment is from."""
    public: Reported | None = None
    """The best public number."""
    goal_return: float | None = None
    """The mean over the seeds is to be this or more."""
    goal_episode: PositiveInt | None = None
    """`goal_return` is to be the mean of `episodes_per_point` training episodes instead, by this
    one."""
    level_with: str | None = None
    """Name of the row that this one is to be no worse than."""
    episodes_per_point: PositiveInt | None = None
    """Record the training return of every episode, and draw means of so many."""
    taken_over: dict[int, float] = Field(default_factory=dict)
    """Returns by seed that were measured before there was this queue."""
    minutes: PositiveFloat
    """Estimate for one run on one core."""
    note: str = ""

    @property
    def overrides(self) -> Flat:
        """All settings that differ from the preset's.

        A run is one process with as many environments as the preset has.
        """
        preset = load_settings(config=Path(self.config), overrides=_texts(self.set)).settings
        resources = preset.resources
        num_envs = max(1, resources.num_env_runners) * resources.num_envs_per_env_runner
        one_process = {"num_env_runners": 0, "num_envs_per_env_runner": num_envs}
        changed = {f"resources.{key}": value for key, value in one_process.items()}
        most = self.env_steps or preset.stop.env_steps
        if most is not None:
            batch = preset.algorithm.train_batch_size
            changed["stop.env_steps"] = most // batch * batch
        given = preset.by_key()
        return {**self.set, **{k: v for k, v in changed.items() if v != given[k]}}

    def settings(self, seed: int) -> Settings:
        """Of one run."""
        flags = {"seed": seed}
        texts = _texts(self.overrides)
        return load_settings(config=Path(self.config), flags=flags, overrides=texts).settings

    def arguments(self, seed: int | str) -> list[str]:
        """Of `rl-service train`."""
        changes = [part for text in _texts(self.overrides) for part in ("--set", text)]
        return ["--config", self.config, *changes, "--seed", str(seed)]

    def command(self) -> str:
        """That repeats a run."""
        train = f"rl-service train {shlex.join(self.arguments('SEED'))}"
        if self.evaluation_seed is None:
            return train
        return f"{train}; rl-service evaluate POLICY --seed {self.evaluation_seed}"


class Figure(Group):
    """Curves of several rows, a panel for each column of their records."""

    name: str
    title: str
    lines: dict[str, str]
    """Names of rows by the labels of their lines."""
    over: str
    """A column of the records."""
    panels: dict[str, str]
    """Labels by column of the records."""


class Section(Group):
    title: str
    rows: tuple[Row, ...]
    figures: tuple[Figure, ...] = ()


class Queue(Group):
    sections: tuple[Section, ...]

    @property
    def rows(self) -> dict[str, Row]:
        """By name."""
        return {row.name: row for section in self.sections for row in section.rows}


def read(path: Path = QUEUE) -> Queue:
    """Reads a queue.

    Raises:
        ValidationError: if it has an unknown key or a wrong value.
    """
    return Queue.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def decisive(settings: Settings) -> dict[str, Any]:
    """The settings that decide a run's numbers, as plain values by dotted key."""
    values = settings.by_key()
    return {key: value for key, value in values.items() if key.partition(".")[0] in DECISIVE} | {
        "num_envs": settings.resources.num_envs_per_env_runner
    }


def _texts(flat: Flat) -> list[str]:
    """As `--set` takes them; JSON is YAML, too."""
    return [f"{key}={json.dumps(value)}" for key, value in flat.items()]
