"""Why a search space, or a point in it, cannot be tried: one line for each reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_service.config.layers import GROUPS
from rl_service.config.schema import VARIANTS
from rl_service.errors import SettingsError
from rl_service.tuning.domains import Value
from rl_service.tuning.space import SearchSpace

_NOT_SEARCHED = {
    "env.id": "scores of different environments cannot be compared",
    "evaluation.": "scores that are measured in different ways cannot be compared",
    "stop.": "scores of trainings of different length cannot be compared",
    "tracking.": "it changes no score",
}
"""Keys, or beginnings of keys, whose values trials must share."""


def check_space(space: SearchSpace) -> list[str]:
    """Why the space cannot be searched; the ends of each domain are tried one by one."""
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
    try:
        space.settings(point)
    except SettingsError as error:
        return [f"points_to_evaluate: {problem}" for problem in error.problems]
    return []


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
    for group in VARIANTS:
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
        f"holds; mend that or take {key} out"
        for key, domain in space.domains.items()
        if not any(key in values for values in space.reachable([key]))
    ]


def _value_problems(space: SearchSpace) -> list[str]:
    """Of one drawn setting at an end of its domain, with those that it depends on."""
    found = []
    for key, domain in space.domains.items():
        under = next(values for values in space.reachable([key]) if key in values)
        for value in domain.ends:
            try:
                space.settings({**under, key: value})
            except SettingsError as error:
                if not _some_other_mends(space, {**under, key: value}):
                    found += error.problems
    return found


def _some_other_mends(space: SearchSpace, values: dict[str, Value]) -> bool:
    """Whether it is only a fixed value that stands in the way, in place of which one is drawn."""
    return any(
        space.are_settings({**values, other: end})
        for other, domain in space.domains.items()
        if other not in values and space.applies(other, values)
        for end in domain.ends
    )


def _shown(when: Mapping[str, list[Value]]) -> str:
    return " and ".join(
        f"{other} is {' or '.join(str(value) for value in allowed)}"
        for other, allowed in when.items()
    )
