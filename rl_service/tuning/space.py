"""The search space: which settings are drawn, from what, and what they make of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rl_service.config.layers import GROUPS, Layer
from rl_service.config.load import checked
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
        for key in self._in_order():
            domain = self.domains[key]
            if self._applies(domain, values):
                coordinates[key] = suggest(key, domain)
                values[key] = domain.to_value(coordinates[key])
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

    def problems(self) -> list[str]:
        """Why the space cannot be searched; the ends of each domain are tried one by one."""
        if not self.domains:
            return ["search_space is empty; give at least one setting and what to draw it from"]
        found = [*self._key_problems(), *self._condition_problems()]
        if found:
            return found
        return list(dict.fromkeys(self._value_problems()))

    def _key_problems(self) -> list[str]:
        return [
            f"search_space {key}: settings are written group.key; groups are {', '.join(GROUPS)}"
            for key in self.domains
            if key.partition(".")[0] not in GROUPS or "." not in key
        ]

    def _condition_problems(self) -> list[str]:
        known = set(self.domains) | set(self.base.by_key())
        found = [
            f"search_space {key}: when names {other}, which is no setting"
            for key, domain in self.domains.items()
            for other in domain.when
            if other not in known
        ]
        if not found and len(self._in_order()) < len(self.domains):
            circle = sorted(set(self.domains) - set(self._in_order()))
            found = [f"search_space {', '.join(circle)}: each `when` waits for another; break it"]
        return found

    def _value_problems(self) -> list[str]:
        """Of one drawn setting at an end of its domain, with those that it depends on."""
        found = []
        for key, domain in self.domains.items():
            for value in domain.ends:
                try:
                    self.settings({**self._enabling(domain), key: value})
                except SettingsError as error:
                    found += error.problems
        return found

    def _enabling(self, domain: Domain) -> dict[str, Value]:
        """Values of other settings under which a domain applies."""
        values: dict[str, Value] = {}
        for other, allowed in domain.when.items():
            if other in self.domains:
                values |= self._enabling(self.domains[other]) | {other: allowed[0]}
        return values

    def _in_order(self) -> list[str]:
        """Settings after those that they depend on; those in a circle are left out."""
        order: list[str] = []
        waiting = list(self.domains)
        while waiting:
            ready = [
                key
                for key in waiting
                if all(other not in waiting for other in self.domains[key].when)
            ]
            if not ready:
                break
            order += ready
            waiting = [key for key in waiting if key not in ready]
        return order

    def _applies(self, domain: Domain, values: Mapping[str, Value]) -> bool:
        fixed = self.base.by_key()
        return all(
            # A setting that is itself drawn only sometimes, and was not, has no value here.
            (values.get(other) if other in self.domains else fixed[other]) in allowed
            for other, allowed in domain.when.items()
        )

    def _base_for(self, values: Mapping[str, Value]) -> dict[str, Any]:
        """The fixed settings, without a group whose kind the values change.

        Another model or algorithm has other settings; those of the base would be unknown to it.
        """
        base = self.base.model_dump(mode="json")
        for group in ("model", "algorithm"):
            name = values.get(f"{group}.name", base[group]["name"])
            if name != base[group]["name"]:
                base[group] = {"name": name}
        return base
