"""The search space: which settings are drawn, from what, and what they make of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rl_service.config.layers import Layer
from rl_service.config.load import checked
from rl_service.config.schema import VARIANTS
from rl_service.config.settings import Settings
from rl_service.errors import SettingsError
from rl_service.tuning.domains import Coordinate, Domain, Value

Coordinates = dict[str, Coordinate]
"""By setting (`algorithm.actor_lr`); those that are not drawn are absent."""
Suggest = Callable[[str, Domain], Coordinate]


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
        try:
            self.settings(values)
        except SettingsError:
            return False
        return True

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
        for group, kinds in VARIANTS.items():
            kind = kinds.get(str(values.get(f"{group}.name", self._base_by_key[f"{group}.name"])))
            if kind is None or kind is type(getattr(self.base, group)):
                continue
            others = {k: v for k, v in fixed.items() if not k.startswith(f"{group}.")}
            defaults = kind.model_construct().model_dump(mode="json")
            fixed = others | {f"{group}.{name}": value for name, value in defaults.items()}
        return {key: value for key, value in fixed.items() if key not in self.domains}

    def reachable(self, keys: Collection[str]) -> list[dict[str, Value]]:
        """What settings can be drawn to together, with those that they depend on.

        Of a range, its ends and what a `when` names stand for the rest.
        """
        involved = set(keys)
        while more := {other for key in involved for other in self._needs(key)} - involved:
            involved |= more
        found: list[dict[str, Value]] = [{}]
        for key in self.in_order():
            if key in involved:
                found = [one for values in found for one in self._with(key, values)]
        return found

    def _with(self, key: str, values: dict[str, Value]) -> list[dict[str, Value]]:
        if not self.applies(key, values):
            return [values]
        named = [value for one in self.domains.values() for value in one.when.get(key, [])]
        ends = self.domains[key].ends
        return [values | {key: value} for value in (*ends, *(v for v in named if v not in ends))]

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
        for group in VARIANTS:
            name = values.get(f"{group}.name", base[group]["name"])
            if name != base[group]["name"]:
                base[group] = {"name": name}
        return base
