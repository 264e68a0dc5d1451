"""Each way to draw a value, and what its coordinates are."""

from __future__ import annotations

from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import ValidationError

from rl_service.tuning.domains import Domain

CASES: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    ({"uniform": (0.0, 0.5)}, [0.0, 0.25, 0.5], [0.0, 0.25, 0.5]),
    ({"loguniform": (1e-4, 1e-2)}, [1e-4, 1e-3], [1e-4, 1e-3]),
    ({"one_minus_loguniform": (0.9, 0.999)}, [0.9, 0.99], [0.1, 0.01]),
    ({"integer": (3, 9)}, [3, 5], [3, 5]),
    ({"power_of_two": (64, 512)}, [64, 256, 512], [6, 8, 9]),
    ({"choice": ["tanh", "relu"]}, ["relu"], ["relu"]),
    ({"choice": [[64, 64], [256]]}, [[256]], ["[256]"]),
]


@pytest.mark.parametrize(("given", "values", "coordinates"), CASES)
def test_values_and_coordinates_are_each_others(
    given: dict[str, Any], values: list[Any], coordinates: list[Any]
) -> None:
    domain = Domain(**given)
    for value, coordinate in zip(values, coordinates, strict=True):
        is_float = isinstance(coordinate, float)
        found = domain.to_coordinate(value), domain.to_value(coordinate)
        expected = (coordinate, value)
        assert found == (pytest.approx(expected) if is_float else expected)


@pytest.mark.parametrize("ends", [(0.2, 0.99), (0.3, 0.7), (0.9, 0.999), (0.0, 0.1)])
def test_values_at_the_ends_stay_within_them(ends: tuple[float, float]) -> None:
    domain = Domain(one_minus_loguniform=ends)
    for end in ends:
        coordinate = domain.to_coordinate(end)
        value = domain.to_value(coordinate)
        assert ends[0] <= value <= ends[1]
        assert value == pytest.approx(end)
        # What a table has read from a trial is a value of the space too.
        assert domain.to_coordinate(1.0 - coordinate) in domain.coordinates


def test_a_domain_reads_back_from_what_it_dumps() -> None:
    given = {"choice": [None, {"rate": None}], "when": {"model.name": [None, "mlp"]}}
    for domain in (Domain(**given), Domain(integer=(1, 4))):
        assert Domain.model_validate(domain.dump()) == domain
    assert Domain(**given).dump() == given


def test_what_a_searcher_sees() -> None:
    gamma = Domain(one_minus_loguniform=(0.9, 0.999)).distribution
    assert isinstance(gamma, FloatDistribution)
    assert (gamma.low, gamma.high, gamma.log) == pytest.approx((0.001, 0.1, True))
    assert Domain(power_of_two=(64, 512)).distribution == IntDistribution(6, 9)
    assert Domain(uniform=(0, 1)).distribution == FloatDistribution(0.0, 1.0)
    choice = Domain(choice=[[64], "x"]).distribution
    assert choice == CategoricalDistribution(["[64]", "x"])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "exactly one of"),
        ({"uniform": (0, 1), "integer": (0, 1)}, "exactly one of"),
        ({"uniform": (1, 1)}, "is empty"),
        ({"loguniform": (0, 1)}, "starts above 0"),
        ({"one_minus_loguniform": (0.9, 1.0)}, "not at, 1"),
        ({"power_of_two": (48, 64)}, "48 is no power of two"),
        ({"choice": []}, "at least 1"),
        ({"uniform": (0, float("inf"))}, "finite"),
        ({"lognormal": (0, 1)}, "Extra inputs"),
    ],
)
def test_what_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Domain(**given)


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({"uniform": (0, 1)}, 2.0),
        ({"uniform": (0, 1)}, "high"),
        ({"integer": (0, 4)}, True),
        ({"integer": (0, 4)}, 2.5),
        ({"one_minus_loguniform": (0.2, 0.99)}, 0.1999),
        ({"power_of_two": (2, 64)}, 33),
        ({"choice": ["tanh"]}, "relu"),
    ],
)
def test_a_value_outside_has_no_coordinate(given: dict[str, Any], value: Any) -> None:
    with pytest.raises(ValueError, match=str(value)):
        Domain(**given).to_coordinate(value)
