"""The search space: which settings are drawn and from what, and what cannot be searched."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rl_service.common.errors import SettingsError
from rl_service.config.layers import GROUPS, Layer
from rl_service.config.load import checked
from rl_service.config.schema import KINDS
from rl_service.config.settings import Settings
from rl_service.tuning.domains import Coordinate, Domain, Value

Coordinates = dict[str, Coordinate]
"""By setting (`algorithm.actor_lr`); those that are not drawn are absent."""
Suggest = Callable[[str, Domain], Coordinate]

_NUM_SAMPLES = 64
_NOT_SEARCHED = {
    "env.id": "scores of different environments cannot be compared",
    "evaluation.": "scores that are measured in different ways cannot be compared",
    "stop.": "scores of trainings of different length cannot be compared",
    "tracking.": "it changes no score",
}
"""Keys, or beginnings of keys, whose values trials must share."""


@dataclass(frozen=True)
class SearchSpace:
    """Domains by setting, over a base of fixed settings."""

    base: Settings
    domains: dict[str, Domain]

    def draw(self, suggest: Suggest) -> Coordinates:
        """Draws the settings that apply, those that others depend on first."""
        coordinates: Coordinates = {}
        values: dict[str, Value] = {}
        for key in self.in_order():
            if self.applies(key, values):
                coordinates[key] = suggest(key, self.domains[key])
                values[key] = self.domains[key].to_value(coordinates[key])
        return coordinates

    def values(self, coordinates: Mapping[str, Coordinate]) -> dict[str, Value]:
        """What a trial's settings are drawn to, by setting."""
        return {
            key: domain.to_value(coordinates[key])
            for key, domain in self.domains.items()
            if key in coordinates
        }

    def coordinates(self, values: Mapping[str, Value]) -> Coordinates:
        """Of a point that the user gave, which may leave settings to be drawn.

        Raises:
            SettingsError: with one problem for each value that the space does not have.
        """
        problems, found = [], {}
        for key, value in values.items():
            try:
                found[key] = self.domains[key].to_coordinate(value)
            except KeyError:
                problems.append(f"points_to_evaluate: {key} is not in search_space; add it there")
            except ValueError as error:
                problems.append(f"points_to_evaluate: {key}: {error}")
        if problems:
            raise SettingsError(problems)
        return found

    def settings(self, values: Mapping[str, Value], seed: int | None = None) -> Settings:
        """The experiment's settings with the values in place.

        Raises:
            SettingsError: if the values contradict each other or the fixed settings.
        """
        layer = Layer("search_space")
        for key, value in values.items():
            group, _, name = key.partition(".")
            layer.put(group, name, value)
        if seed is not None:
            layer.values["seed"] = seed
        return checked([Layer("the experiment", self._base_for(values)), layer], [])

    def are_settings(self, values: Mapping[str, Value]) -> bool:
        """Whether `settings` would take the values."""
        return not _problems_of(self, values)

    def in_order(self) -> list[str]:
        """Settings after those that they depend on; those in a circle are left out."""
        order: list[str] = []
        waiting = list(self.domains)
        while waiting:
            ready = [key for key in waiting if not any(o in waiting for o in self._needs(key))]
            if not ready:
                break
            order += ready
            waiting = [key for key in waiting if key not in ready]
        return order

    def applies(self, key: str, values: Mapping[str, Value]) -> bool:
        """Whether a setting is drawn, where those before it have been drawn to the values."""
        when = self.domains[key].when
        known = {**self.fixed(values), **values} if when else {}
        # A setting that is itself drawn only sometimes, and was not, has no value here.
        return all(other in known and known[other] in allowed for other, allowed in when.items())

    def fixed(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Settings that are never drawn, where the drawn ones have the values."""
        fixed = self._base_by_key
        for group, kinds in KINDS.items():
            kind = kinds.get(str(values.get(f"{group}.name", self._base_by_key[f"{group}.name"])))
            if kind is None or kind is type(getattr(self.base, group)):
                continue
            others = {k: v for k, v in fixed.items() if not k.startswith(f"{group}.")}
            defaults = kind().model_dump(mode="json")
            fixed = others | {f"{group}.{name}": value for name, value in defaults.items()}
        return {key: value for key, value in fixed.items() if key not in self.domains}

    @cached_property
    def samples(self) -> list[dict[str, Value]]:
        """Values of 64 draws, the same each time.

        A range gives its two ends, and the values that a `when` names.
        """
        rng = random.Random(0)
        named = [when for domain in self.domains.values() for when in domain.when.items()]

        def suggest(key: str, domain: Domain) -> Coordinate:
            more = [value for other, values in named if other == key for value in values]
            return domain.to_coordinate(rng.choice([*domain.ends, *more]))

        return [self.values(self.draw(suggest)) for _ in range(_NUM_SAMPLES)]

    def _needs(self, key: str) -> list[str]:
        """Drawn settings that decide whether another one is."""
        when = self.domains[key].when
        # A fixed setting is that of the group's kind, which may itself be drawn.
        kinds = [f"{other.partition('.')[0]}.name" for other in when if other not in self.domains]
        return [other for other in (*when, *kinds) if other in self.domains and other != key]

    @cached_property
    def _base_by_key(self) -> dict[str, Value]:
        return self.base.by_key()

    def _base_for(self, values: Mapping[str, Value]) -> dict[str, Any]:
        """The fixed settings, without a group whose kind the values change.

        Another model or algorithm has other settings; those of the base would be unknown to it.
        """
        base = self.base.model_dump(mode="json")
        for group in KINDS:
            name = values.get(f"{group}.name", base[group]["name"])
            if name != base[group]["name"]:
                base[group] = {"name": name}
        return base


def check_space(space: SearchSpace) -> list[str]:
    """Why the space cannot be searched: one line for each reason."""
    if not space.domains:
        return ["search_space is empty; give at least one setting and what to draw it from"]
    found = [*_key_problems(space), *_condition_problems(space)]
    found = found or _circle_problems(space) or _never_drawn(space)
    return found or list(dict.fromkeys(_value_problems(space)))


def check_point(space: SearchSpace, point: Mapping[str, Value]) -> list[str]:
    """Why a point of `points_to_evaluate` cannot be tried as it is."""
    try:
        space.coordinates(point)
    except SettingsError as error:
        return error.problems
    found = [
        f"points_to_evaluate: {key} is drawn only when {_shown(space.domains[key].when)}, which "
        f"the point does not say; add that to the point or take {key} out of it"
        for key in point
        if not space.applies(key, point)
    ]
    if found or any(key not in point and space.applies(key, point) for key in space.domains):
        return found  # what the point leaves to be drawn may still make it right
    return [f"points_to_evaluate: {problem}" for problem in _problems_of(space, point)]


def _key_problems(space: SearchSpace) -> list[str]:
    found = [
        f"search_space {key}: settings are written group.key; groups are {', '.join(GROUPS)}"
        for key in space.domains
        if key.partition(".")[0] not in GROUPS or "." not in key
    ]
    return found + [
        f"search_space {key}: {why}; give it in settings, once for all trials"
        for key in space.domains
        for beginning, why in _NOT_SEARCHED.items()
        if key == beginning or (beginning.endswith(".") and key.startswith(beginning))
    ]


def _condition_problems(space: SearchSpace) -> list[str]:
    known = {*space.domains, *space.base.by_key()}
    for group in KINDS:
        name = space.domains.get(f"{group}.name")
        for value in name.ends if name else []:
            known |= set(space.fixed({f"{group}.name": value}))
    found = []
    for key, domain in space.domains.items():
        for other, allowed in domain.when.items():
            if other not in known:
                found.append(f"search_space {key}: when names {other}, which is no setting")
            elif other in space.domains:
                found += _never_drawn_values(space, key, other, allowed)
    return found


def _never_drawn_values(space: SearchSpace, key: str, other: str, allowed: list[Any]) -> list[str]:
    found = []
    for value in allowed:
        try:
            space.domains[other].to_coordinate(value)
        except ValueError as error:
            found.append(f"search_space {key}: when waits for {other}={value}, and {error}")
    return found


def _circle_problems(space: SearchSpace) -> list[str]:
    circle = sorted(set(space.domains) - set(space.in_order()))
    if not circle:
        return []
    return [f"search_space {', '.join(circle)}: each `when` waits for another; break it"]


def _never_drawn(space: SearchSpace) -> list[str]:
    return [
        f"search_space {key} would never be drawn, since its `when` ({_shown(domain.when)}) never "
        f"holds; fix that or remove {key}"
        for key, domain in space.domains.items()
        if not any(key in values for values in space.samples)
    ]


def _value_problems(space: SearchSpace) -> list[str]:
    """Of the ends of each domain that no sample makes settings of, whatever else it draws."""
    problems = [_problems_of(space, values) for values in space.samples]
    found = []
    for key, domain in space.domains.items():
        for end in domain.ends:
            outcomes = [
                outcome
                for outcome, values in zip(problems, space.samples, strict=True)
                if key in values and values[key] == end
            ]
            if outcomes and all(outcomes):
                fewest = min(outcomes, key=len)
                found += fewest
    return found


def _problems_of(space: SearchSpace, values: Mapping[str, Value]) -> list[str]:
    try:
        space.settings(values)
    except SettingsError as error:
        return error.problems
    return []


def _shown(when: Mapping[str, list[Value]]) -> str:
    return " and ".join(
        f"{other} is {' or '.join(str(value) for value in allowed)}"
        for other, allowed in when.items()
    )
