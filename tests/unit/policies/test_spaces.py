"""Descriptions of spaces: gymnasium's own, flattened as it does, and strict about what is given."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from pydantic import TypeAdapter, ValidationError

from custom_models.spaces import ActionSpec
from custom_models.text_rows import text_row
from rl_service.common.errors import ObservationError
from rl_service.policies.spaces import ActionSpace, Space, TextSpec, observed_part, space_spec

SPACE: TypeAdapter[Any] = TypeAdapter(Space)
ACTION_SPACE: TypeAdapter[Any] = TypeAdapter(ActionSpace)


def box(low: list[float], high: list[float]) -> spaces.Box:
    return spaces.Box(np.array(low, np.float32), np.array(high, np.float32))


SPACES: dict[str, gym.Space[Any]] = {
    "box": spaces.Box(-1.0, 1.0, (2, 3)),
    "half-bounded box": spaces.Box(
        np.array([0, -np.inf], np.float32), np.array([np.inf, 2], np.float32)
    ),
    "pixels": spaces.Box(0, 255, (2, 2), np.uint8),
    "float64 box": spaces.Box(-1e300, 1e300, (2,), np.float64),
    "number": spaces.Box(-1.0, 1.0, ()),
    "discrete": spaces.Discrete(5),
    "discrete from -3": spaces.Discrete(4, start=-3),
    "multi_discrete": spaces.MultiDiscrete([2, 4, 3]),
    "multi_discrete of two dimensions": spaces.MultiDiscrete(
        np.array([[2, 3], [4, 5]]), dtype=np.int32, start=np.array([[1, 0], [-2, 7]])
    ),
    "multi_binary": spaces.MultiBinary(6),
    "multi_binary of two dimensions": spaces.MultiBinary((2, 3)),
    "dict": spaces.Dict({"z": spaces.Discrete(3), "a": spaces.Box(-1.0, 1.0, (2,))}),
    "dict in its own order": spaces.Dict(
        OrderedDict([("z", spaces.Discrete(3)), ("a", spaces.MultiBinary(2))])
    ),
    "tuple": spaces.Tuple((spaces.Discrete(32), spaces.Discrete(11), spaces.Discrete(2))),
    "nested": spaces.Dict(
        {
            "own key": spaces.Tuple((spaces.Box(-2, 2, (2,), np.float64), spaces.Discrete(2))),
            "$ref": spaces.Dict({"model_config": spaces.MultiBinary(2), "": spaces.Discrete(3)}),
            "class": spaces.Tuple((spaces.Tuple((spaces.MultiDiscrete([3, 2]),)),)),
        }
    ),
}
every_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)


@every_space
def test_observations_are_flattened_as_gymnasium_does_it(space: gym.Space[Any]) -> None:
    spec = space_spec(space)
    space.seed(1)
    assert spec.size == spaces.flatdim(space)
    for _ in range(50):
        value = space.sample()
        with np.errstate(over="ignore"):
            expected = np.asarray(spaces.flatten(space, value), np.float32)
        if not np.isfinite(expected).all():
            continue
        row = spec.flatten(value)
        assert row.dtype == np.float32
        np.testing.assert_array_equal(row, expected)
        sent = json.loads(json.dumps(spec.unflatten(row)))  # as a client sends it
        np.testing.assert_array_equal(spec.flatten(sent), expected)


def test_the_keys_of_a_dict_are_sorted_as_gymnasium_does_it() -> None:
    spec = space_spec(SPACES["dict"])
    assert spec.flatten({"z": 2, "a": [0.5, -0.5]}).tolist() == [0.5, -0.5, 0.0, 0.0, 1.0]
    spec = space_spec(SPACES["dict in its own order"])
    assert spec.flatten({"a": [1, 0], "z": 1}).tolist() == [0.0, 1.0, 0.0, 1.0, 0.0]


@every_space
def test_a_description_is_read_as_it_was_written(space: gym.Space[Any]) -> None:
    spec = space_spec(space)
    assert SPACE.validate_json(SPACE.dump_json(spec), strict=True) == spec


@every_space
def test_samples_are_observations_and_numbers_are_told_from_choices(space: gym.Space[Any]) -> None:
    spec, rng = space_spec(space), np.random.default_rng(0)
    rows = np.stack([spec.sample(rng) for _ in range(20)])
    for row in rows:
        np.testing.assert_array_equal(spec.flatten(spec.unflatten(row)), row)
    choices = rows[:, ~spec.is_number]
    assert np.isin(choices, (0.0, 1.0)).all()
    parts = str(space).count("Box(")
    assert spec.is_number.any() == (parts > 0)
    assert len(np.unique(rows, axis=0)) > 1


def test_samples_of_a_box_are_within_its_bounds() -> None:
    spec = space_spec(box([-1, 50, -np.inf], [1, 60, 3e38]))
    rows = np.stack([spec.sample(np.random.default_rng(i)) for i in range(200)])
    assert (rows >= [-1.0, 50.0, -10.0]).all() and (rows <= [1.0, 60.0, 10.0]).all()
    assert rows[:, 0].std() > 0.3 and rows[:, 2].std() > 3.0


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=2),
        spaces.Box(-2.0, np.inf, (2, 2)),
        spaces.MultiDiscrete(np.array([[2, 3]]), start=np.array([[5, 0]])),
        spaces.MultiDiscrete([2, 3], dtype=np.uint8),
        spaces.MultiBinary((2, 2)),
    ],
)
def test_actions_are_those_of_the_environment(space: gym.Space[Any]) -> None:
    spec = ACTION_SPACE.validate_python(space_spec(space))
    assert spec.to_action_spec() == ActionSpec.from_space(space)


def test_a_text_is_a_row_of_its_code_points() -> None:
    spec = space_spec(spaces.Text(5))
    assert spec.flatten("aé😀").tolist() == [97.0, 233.0, 128512.0, 0.0, 0.0]
    assert spec.unflatten(spec.flatten("aé😀")) == "aé😀"
    offered = text_row("at", ["ab", "c"], 9)
    assert space_spec(spaces.Text(9)).unflatten(offered) == {
        "text": "at",
        "admissible_actions": ["ab", "c"],
    }


@pytest.mark.parametrize("max_length", [1, 5, 300])
def test_a_sampled_text_is_short(max_length: int) -> None:
    spec = TextSpec(max_length=max_length)
    texts = {spec.unflatten(spec.sample(np.random.default_rng(i))) for i in range(20)}
    assert {len(text) for text in texts} == {min(5, max_length)}
    assert len(texts) > 1


NESTED = SPACES["nested"]
GOOD = {
    "own key": ([0.5, 1.0], 1),
    "$ref": {"model_config": [0, 1], "": 2},
    "class": [[[2, 1]]],
}
WRONG: dict[str, tuple[gym.Space[Any], Any, str]] = {
    "another shape": (SPACES["box"], [0.0, 1.0], r"^observation: expected numbers of shape \[2, 3"),
    "unequal rows": (SPACES["box"], [[0.0] * 3, [0.0]], "of shape .*, found something else"),
    "a text": (SPACES["box"], [["a"] * 3] * 2, "found something else"),
    "NaN": (SPACES["box"], [[0, 0, 0], [0, np.nan, 0]], r"^observation\[1\]\[1\]: not finite"),
    "too large": (SPACES["float64 box"], [0.0, 1e39], r"^observation\[1\]: not finite"),
    "a choice too many": (SPACES["discrete"], 5, "^observation: expected an integer from 0 to 4"),
    "a choice too few": (SPACES["discrete from -3"], -4, "integer from -3 to 0, found -4"),
    "a fraction": (SPACES["discrete"], 1.5, "expected integers"),
    "a list for a choice": (SPACES["discrete"], [1], r"of shape \[\], found shape \[1\]"),
    "a component": (SPACES["multi_discrete"], [1, 4, 0], r"^observation\[1\]: .* 0 to 3, found 4"),
    "a bit": (SPACES["multi_binary"], [0, 1, 2, 0, 0, 0], r"^observation\[2\]: .* from 0 to 1"),
    "a number for a text": (spaces.Text(3), 1, "expected a text, found int"),
    "too long a text": (spaces.Text(3), "four", "^observation: the text has 4 characters"),
    "the separator": (spaces.Text(3), "a\x1eb", "U[+]001E"),
    "a list for an object": (NESTED, [1], "^observation: expected an object, found list; give one"),
    "a missing key": (NESTED, {k: GOOD[k] for k in list(GOOD)[1:]}, "own key: it is missing"),
    "an unknown key": (NESTED, {**GOOD, "x": 1}, r"^observation\.x: it is unknown; give exactly"),
    "a part of a part": (
        NESTED,
        {**GOOD, "$ref": {"model_config": [0, 2], "": 2}},
        r"^observation\.\$ref\.model_config\[1\]: expected an integer from 0 to 1, found 2",
    ),
    "a part of a tuple": (
        NESTED,
        {**GOOD, "class": [[[3, 1]]]},
        r"\.class\[0\]\[0\]\[0\]: expected",
    ),
    "a short tuple": (NESTED, {**GOOD, "class": []}, "expected a list of 1 parts, found list"),
}


@pytest.mark.parametrize(("space", "value", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named_with_its_place(
    space: gym.Space[Any], value: Any, message: str
) -> None:
    space_spec(NESTED).flatten(GOOD)
    with pytest.raises(ObservationError, match=message) as raised:
        space_spec(space).flatten(value)
    assert "\n" not in str(raised.value)


def _deep(depth: int) -> dict[str, Any]:
    space: dict[str, Any] = {"type": "Discrete", "n": 2}
    for _ in range(depth - 1):
        space = {"type": "Tuple", "spaces": [space]}
    return space


BAD_DESCRIPTIONS: dict[str, Any] = {
    "another kind": {"type": "Graph"},
    "no kind": {"n": 2},
    "too deep": _deep(9),
    "much too deep": _deep(150),
    "no parts": {"type": "Tuple", "spaces": []},
    "too many parts": {"type": "Dict", "spaces": {f"p{i}": _deep(1) for i in range(1001)}},
    "a name without an end": {"type": "Dict", "spaces": {"x" * 101: _deep(1)}},
    "no choice": {"type": "MultiDiscrete", "shape": [1], "nvec": [0], "start": [0]},
    "components without a shape": {
        "type": "MultiDiscrete",
        "shape": [3],
        "nvec": [2],
        "start": [0],
    },
    "a start for each but one": {
        "type": "MultiDiscrete",
        "shape": [2],
        "nvec": [2, 2],
        "start": [0],
    },
    "a million million bits": {"type": "MultiBinary", "shape": [10**6, 10**6]},
    "a text of a gigabyte": {"type": "Text", "max_length": 2**30},
}


@pytest.mark.parametrize("description", BAD_DESCRIPTIONS.values(), ids=BAD_DESCRIPTIONS)
def test_a_strangers_description_is_bounded(description: Any) -> None:
    SPACE.validate_json(json.dumps(_deep(8)), strict=True)
    with pytest.raises(ValidationError):
        SPACE.validate_json(json.dumps(description), strict=True)


def test_a_space_that_cannot_be_flattened_has_no_description() -> None:
    with pytest.raises(TypeError, match=r"Sequence.*is not supported; use Box, Discrete"):
        space_spec(spaces.Sequence(spaces.Discrete(2)))


def test_two_spaces_have_one_layout_if_what_fits_one_can_be_sent_to_the_other() -> None:
    def layout(*parts: tuple[str, gym.Space[Any]]) -> Any:
        return space_spec(spaces.Dict(OrderedDict(parts))).layout

    pair = ("a", spaces.MultiDiscrete([2, 3])), ("b", spaces.Box(-1.0, 1.0, (2,)))
    wider = pair[0], ("b", spaces.Box(-2.0, np.inf, (2,)))
    longer = pair[0], ("b", spaces.Box(-1.0, 1.0, (3,)))
    others = ("a", spaces.MultiDiscrete([3, 2])), pair[1]
    assert layout(*pair) == layout(*wider)
    for other in (longer, others, pair[::-1], pair[:1]):
        assert layout(*pair) != layout(*other)
    assert space_spec(spaces.Tuple([pair[1][1]])).layout != space_spec(pair[1][1]).layout


def test_a_mask_is_no_part_of_what_a_policy_reads() -> None:
    parts = {"a": spaces.Discrete(2), "action_mask": spaces.MultiBinary(3), "b": spaces.Discrete(3)}
    inner = spaces.Dict({"x": spaces.Dict(parts)})
    assert observed_part(space_spec(spaces.Dict(parts))).size == 5
    assert observed_part(space_spec(inner)).size == 8  # only the observation's own mask is one
    assert observed_part(space_spec(parts["a"])) == space_spec(parts["a"])
