"""Observations and masks, as an environment or a client gives them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from custom_models.spaces import ActionSpec
from custom_models.text_rows import read_row
from rl_service.common.errors import ObservationError
from rl_service.policies.observing import ObservationReader
from rl_service.policies.spaces import space_spec
from rl_service.rollout.text_env import TextSpace

THREE, FOUR_AND_TWO = spaces.Discrete(3), spaces.MultiDiscrete([2, 2])
BOARD = spaces.Dict({"action_mask": spaces.MultiBinary(3), "board": spaces.Discrete(2)})


def reader(
    space: gym.Space[Any], actions: gym.Space[Any] = THREE, uses_masks: bool = True
) -> ObservationReader:
    spec = ActionSpec.from_space(actions)
    return ObservationReader(space_spec(space), spec, uses_masks=uses_masks)


def test_a_box_keeps_its_shape_and_what_is_flattened_is_a_row() -> None:
    box, pair = spaces.Box(-1.0, 1.0, (2, 2)), spaces.Tuple((THREE, THREE))
    row, mask = reader(box).read([[1, 0], [0, 1]])
    assert (row.tolist(), row.dtype, mask) == ([[1.0, 0.0], [0.0, 1.0]], np.float32, None)
    assert reader(pair).read((2, 0))[0].tolist() == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "given", [[1, 0, 1], [True, False, True], (1, 0, 1), np.array([1, 0, 1], np.int8)]
)
def test_a_mask_is_read_however_it_is_given(given: Any) -> None:
    for row, mask in (
        reader(spaces.Discrete(2)).read(1, given),
        reader(BOARD).read({"board": 1, "action_mask": given}),
    ):
        assert row.tolist() == [0.0, 1.0]
        assert mask is not None and mask.tolist() == [True, False, True]


def test_a_mask_may_come_in_parts() -> None:
    given = (np.array([1, 0], np.int8), np.array([0, 1], np.int8))
    _, mask = reader(spaces.Discrete(2), FOUR_AND_TWO).read(1, given)
    assert mask is not None and mask.tolist() == [True, False, False, True]


def test_a_policy_that_learned_without_masks_ignores_that_of_the_observation() -> None:
    policy = reader(BOARD, uses_masks=False)
    assert policy.read({"board": 0, "action_mask": [0, 0, 1]})[1] is None
    assert policy.read({"board": 0, "action_mask": [0, 0, 1]}, [1, 0, 0])[1] is not None


def test_the_mask_of_the_observation_goes_before_that_of_the_info() -> None:
    _, mask = reader(BOARD).read({"board": 0, "action_mask": [0, 0, 1]}, [1, 0, 0])
    assert mask is not None and mask.tolist() == [False, False, True]


WRONG: dict[str, tuple[Any, Any, Any, str]] = {
    "short": (
        spaces.Discrete(2),
        0,
        [1, 1],
        "has 2 entries, .* need 3, .*expected 3 zeros and ones",
    ),
    "all zero": (spaces.Discrete(2), 0, [0, 0, 0], "allows no action; expected 3 zeros and ones"),
    "missing": (BOARD, {"board": 0}, None, r"^observation\.action_mask: it is missing"),
    "all zero inside": (BOARD, {"board": 0, "action_mask": [0, 0, 0]}, None, "allows no action"),
    "beside a list": (BOARD, [0], None, "expected an object, found list"),
}


@pytest.mark.parametrize(("space", "value", "mask", "message"), WRONG.values(), ids=WRONG)
def test_a_mask_that_does_not_fit_is_refused(
    space: gym.Space[Any], value: Any, mask: Any, message: str
) -> None:
    with pytest.raises(ObservationError, match=message):
        reader(space).read(value, mask)


def test_a_mask_for_numbers_is_refused() -> None:
    with pytest.raises(ObservationError, match="for discrete actions, and these are a Box"):
        reader(spaces.Discrete(2), spaces.Box(-1.0, 1.0, (2,))).read(0, [1, 1])


def test_a_text_may_bring_the_actions_to_choose_among() -> None:
    policy = reader(spaces.Text(40), spaces.Discrete(20))
    given = {"text": "A door.", "admissible_actions": ["open it", "wait"]}
    row, mask = policy.read(given)
    assert read_row(row) == ("A door.", ["open it", "wait"])
    assert mask is not None and mask.tolist() == [True] * 2 + [False] * 18
    row, mask = policy.read("A door.")
    assert (read_row(row), mask) == (("A door.", []), None)


def test_a_text_must_bring_its_actions_where_they_differ_from_step_to_step() -> None:
    policy = reader(TextSpace(40, brings_actions=True), spaces.Discrete(20))
    with pytest.raises(ObservationError, match="an object with text and admissible_actions"):
        policy.read("A door.")
    _, mask = policy.read({"text": "A door.", "admissible_actions": ["open it"]})
    assert mask is not None and mask.sum() == 1
    sample = policy.observed.sample(np.random.default_rng(0))
    assert policy.observed.unflatten(sample)["admissible_actions"] == ["a", "b"]


WRONG_TEXTS: dict[str, tuple[Any, str]] = {
    "a separator": ({"text": "a\x1eb", "admissible_actions": ["c"]}, "U[+]001E"),
    "a separator in an action": ({"text": "a", "admissible_actions": ["b\x1ec"]}, "U[+]001E"),
    "no action": ({"text": "a", "admissible_actions": []}, "there are 0; .* among 1 to 4"),
    "too many actions": ({"text": "a", "admissible_actions": list("abcde")}, "there are 5"),
    "too long": ({"text": "a" * 39, "admissible_actions": ["b"]}, "the text has 41 characters"),
    "one text for all": ({"text": "a", "admissible_actions": "bc"}, "a list of texts"),
    "numbers": ({"text": "a", "admissible_actions": [1]}, "a list of texts"),
    "a surplus key": ({"text": "a", "admissible_actions": ["b"], "x": 1}, "expected a text, or an"),
}


@pytest.mark.parametrize(("given", "message"), WRONG_TEXTS.values(), ids=WRONG_TEXTS)
def test_a_text_with_other_actions_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ObservationError, match=message):
        reader(spaces.Text(40), spaces.Discrete(4)).read(given)
