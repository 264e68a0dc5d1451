"""What a setting may be drawn from.

A searcher sees a *coordinate* rather than the value: the exponent of a power of two, `1 - gamma`
in place of `gamma`. On coordinates a step up or down, a factor or a model of the objective means
the same everywhere, and a perturbed value stays within its bounds.
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Value = Any
"""Of a setting, as YAML has it."""
Coordinate = Any
"""Of a value, as a searcher has it: a float, an int or an entry of a choice."""

_CONTINUOUS = ("uniform", "loguniform", "one_minus_loguniform")
_KINDS = (*_CONTINUOUS, "integer", "power_of_two", "choice")
_ROUNDING = 1e-12
"""How far a value may lie outside its range: what arithmetic loses, and nothing that matters."""


class Domain(BaseModel):
    """One key of `search_space`: exactly one way to draw, and when the key is drawn at all."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    uniform: tuple[float, float] | None = None
    """Least and greatest value."""
    loguniform: tuple[float, float] | None = None
    """The same, with equal weight for each power of ten."""
    one_minus_loguniform: tuple[float, float] | None = None
    """Least and greatest value below 1, where 1 - value is what has a scale: 0.9 to 0.999."""
    integer: tuple[int, int] | None = None
    """Least and greatest whole number."""
    power_of_two: tuple[int, int] | None = None
    """Least and greatest, both powers of two."""
    choice: Annotated[list[Value], Field(min_length=1)] | None = None
    """The values themselves."""
    when: dict[str, list[Value]] = Field(default_factory=dict)
    """Draws the key only if each of these settings has one of these values."""

    @field_validator("when", mode="before")
    @classmethod
    def _as_lists(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: one if isinstance(one, list) else [one] for key, one in value.items()}

    @model_validator(mode="after")
    def _is_one_way(self) -> Domain:
        given = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of {', '.join(_KINDS)}")
        if given != ["choice"]:
            low, high = getattr(self, given[0])
            _check_bounds(given[0], low, high)
        return self

    @property
    def kind(self) -> str:
        """The way to draw that is given."""
        return next(kind for kind in _KINDS if getattr(self, kind) is not None)

    @property
    def ends(self) -> list[Value]:
        """Values at the ends of the range, or all choices: what must be valid settings."""
        return list(self.choice) if self.choice is not None else list(getattr(self, self.kind))

    @property
    def coordinates(self) -> list[Coordinate]:
        """Of `ends`; lowest first where they have an order."""
        found = [self.to_coordinate(value) for value in self.ends]
        return found if self.choice is not None else sorted(found)

    @property
    def distribution(self) -> BaseDistribution:
        """Of the coordinates."""
        if self.choice is not None:
            return CategoricalDistribution([_plain(value) for value in self.choice])
        low, high = self.coordinates
        if self.kind in _CONTINUOUS:
            return FloatDistribution(low, high, log=self.kind != "uniform")
        return IntDistribution(low, high)

    def dump(self) -> dict[str, Any]:
        """The domain as a tuning file has it."""
        given: dict[str, Any] = self.model_dump(mode="json", include={self.kind})
        return given | ({"when": self.when} if self.when else {})

    def label(self, key: str) -> str:
        """What a coordinate of the setting is called where coordinates are shown."""
        names = {"one_minus_loguniform": f"1 - {key}", "power_of_two": f"log2 {key}"}
        return names.get(self.kind, key)

    def to_value(self, coordinate: Coordinate) -> Value:
        """The setting's value."""
        if self.kind in _CONTINUOUS:
            return self._clipped(self._mirrored(coordinate))
        if self.kind == "power_of_two":
            return 2 ** int(coordinate)
        if self.kind == "choice":
            return next(value for value in self.choice or [] if _plain(value) == coordinate)
        return int(coordinate)

    def to_coordinate(self, value: Value) -> Coordinate:
        """The coordinate of a value.

        Raises:
            ValueError: if the domain has no such value.
        """
        if self.choice is not None:
            if value not in self.choice:
                raise ValueError(f"{value!r} is not among {self.choice}")
            return _plain(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{value!r} is no number")
        inside = self._clipped(value)
        if not math.isclose(value, inside, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
            low, high = getattr(self, self.kind)
            raise ValueError(f"{value} is outside {low:g} to {high:g}")
        if self.kind in _CONTINUOUS:
            return self._mirrored(inside)
        if self.kind == "power_of_two":
            return _exponent(inside)
        if inside != int(inside):
            raise ValueError(f"{value:g} is no whole number")
        return int(inside)

    def _mirrored(self, number: float) -> float:
        """Turns a value of a range into its coordinate, and back."""
        return 1.0 - number if self.kind == "one_minus_loguniform" else float(number)

    def _clipped(self, value: float) -> float:
        """Within the range, which 1 - (1 - value) leaves by its last digit."""
        low, high = getattr(self, self.kind)
        return float(min(max(value, low), high))


def _check_bounds(kind: str, low: float, high: float) -> None:
    if low >= high:
        raise ValueError(f"{kind}: [{low:g}, {high:g}] is empty; give the lower bound first")
    if kind == "loguniform" and low <= 0:
        raise ValueError(f"loguniform starts above 0, not at {low:g}")
    if kind == "one_minus_loguniform" and not 0 <= low < high < 1:
        raise ValueError("one_minus_loguniform lies from 0 up to, but not at, 1")
    if kind == "power_of_two":
        _exponent(low), _exponent(high)


def _exponent(value: float) -> int:
    exponent = round(math.log2(value)) if value >= 1 else -1
    if exponent < 0 or 2**exponent != value:
        raise ValueError(f"{value:g} is no power of two")
    return exponent


def _plain(value: Value) -> Coordinate:
    """Lists as their text, since a searcher wants plain values."""
    return json.dumps(value) if isinstance(value, list | dict) else value
