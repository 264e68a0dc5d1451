"""Text at the border of an environment: what becomes a row, and what an action's number means."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from custom_models.text_rows import MAX_ACTIONS, read_row, text_row
from rl_service.common.errors import EnvError
from rl_service.config.settings import EnvSettings
from rl_service.rollout.envs import make_env, try_env
from rl_service.rollout.text_env import TextObservation, TextRows


class Told(gym.Env[Any, Any]):
    """Tells what it was given: as its observation, or in `info`."""

    def __init__(
        self,
        offers: Sequence[Sequence[str]] = (),
        in_info: bool = False,
        takes_text: bool = True,
        length: int = 3,
        own_mask: Sequence[int] | None = None,
    ) -> None:
        self.observation_space = gym.spaces.Discrete(100) if in_info else gym.spaces.Text(100)
        self.action_space = gym.spaces.Text(100) if takes_text else gym.spaces.Discrete(4)
        self._offers, self._in_info, self._length = list(offers), in_info, length
        self._own_mask = own_mask
        self._t = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        return self._tell("new")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        obs, info = self._tell(f"given {action!r}")
        return obs, 1.0, self._t == self._length, False, info

    def _tell(self, text: str) -> tuple[Any, dict[str, Any]]:
        info: dict[str, Any] = {"text": text} if self._in_info else {}
        if self._t < len(self._offers):
            info["admissible_actions"] = self._offers[self._t]
        if self._own_mask is not None:
            info["action_mask"] = self._own_mask
        return (self._t if self._in_info else text), info


def settings(**changes: Any) -> EnvSettings:
    kwargs = {name: changes.pop(name) for name in list(changes) if name in KWARGS}
    return EnvSettings(id=f"{__name__}:Told", kwargs=kwargs, **changes)


KWARGS = {"offers", "in_info", "takes_text", "length", "own_mask"}
DOORS = ["open the door", "wait"]


def as_words(observation: Any) -> str:
    """For `env.describe`."""
    return f"the number {observation}"


def as_number(observation: Any) -> int:
    return int(observation)


@pytest.mark.parametrize("actions", [[], ["go", "stay – 止まる 🛑"]])
def test_a_row_reads_back_to_its_text_and_actions(actions: list[str]) -> None:
    text = "Zelle 3:\n  ⛄ 'é' \U0010ffff "
    row = text_row(text, actions, 60)
    assert row.dtype == np.float32
    assert row.shape == (60,)
    assert read_row(row) == (text, actions)
    assert row[0] == ord("Z")
    assert row[len(text)] == (0x1E if actions else 0)
    assert read_row(np.zeros(5, np.float32)) == ("", [])


@pytest.mark.parametrize(
    ("text", "actions", "words"),
    [
        ("x" * 31, [], "31 characters, .* env.max_text_length=30; raise that"),
        ("x" * 20, ["y" * 10], "31 characters"),
        ("x", ["a"] * 21, "21 admissible actions, .* 20 at most"),
        ("x", ["a", " "], "admissible action is empty"),
        ("a\x1eb", [], "U\\+001E"),
        ("a", ["b", "c\0"], "U\\+0000"),
    ],
)
def test_a_text_that_does_not_fit_a_row_is_refused(
    text: str, actions: list[str], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        text_row(text, actions, 30)


@pytest.mark.parametrize("number", [-1.0, 2.0**21, np.nan])
def test_numbers_that_are_no_characters_are_refused(number: float) -> None:
    with pytest.raises(ValueError, match="no Unicode code points"):
        read_row(np.array([65.0, number], np.float32))


def test_a_text_observation_is_a_row_and_a_number_chooses_an_action() -> None:
    offers = [DOORS, ["a", "b", "c"], ["z"]]
    with closing(make_env(settings(offers=offers, max_text_length=60))) as env:
        assert isinstance(env.observation_space, TextRows)
        assert env.observation_space.brings_actions
        assert env.observation_space.shape == (60,)
        assert env.get_wrapper_attr("raw_space") == gym.spaces.Text(60)
        assert env.action_space == gym.spaces.Discrete(MAX_ACTIONS)
        row, info = env.reset(seed=0)
        assert env.observation_space.contains(row)
        assert read_row(row) == ("new", DOORS)
        np.testing.assert_array_equal(info["action_mask"], [1, 1] + [0] * 18)
        row, _, _, _, info = env.step(np.int64(1))
        assert read_row(row) == ("given 'wait'", ["a", "b", "c"])
        assert info["action_mask"].sum() == 3
        row, _, _, _, info = env.step(np.int64(2))
        assert read_row(row) == ("given 'c'", ["z"])
        row, _, terminated, _, info = env.step(np.int64(0))
        assert (read_row(row), terminated) == (("given 'z'", []), True)  # nothing is left to do
        assert "action_mask" not in info


def test_an_environment_that_counts_its_actions_is_given_the_number() -> None:
    with closing(make_env(settings(offers=[DOORS], takes_text=False))) as env:
        assert env.action_space == gym.spaces.Discrete(4)
        row, info = env.reset(seed=0)
        assert read_row(row) == ("new", DOORS)
        np.testing.assert_array_equal(info["action_mask"], [1, 1, 0, 0])
        row, _, _, _, info = env.step(1)
        assert read_row(row) == ("given 1", [])
        assert "action_mask" not in info


class Masked(gym.Env[Any, Any]):
    """Its mask is a part of what it observes."""

    observation_space = gym.spaces.Dict(
        {"cell": gym.spaces.Discrete(9), "action_mask": gym.spaces.MultiBinary(3)}
    )
    action_space = gym.spaces.Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        return {"cell": 7, "action_mask": np.array([1, 0, 1], np.int8)}, {}


@pytest.mark.parametrize("is_used", [True, False])
def test_a_mask_in_a_described_observation_is_no_part_of_the_text(is_used: bool) -> None:
    made = make_env(
        EnvSettings(id=f"{__name__}:Masked", describe=f"{__name__}:as_words", action_masks=is_used)
    )
    with closing(made) as env:
        row, info = env.reset(seed=0)
    assert read_row(row) == ("the number {'cell': 7}", [])
    assert [list(mask) for mask in info.values()] == ([[1, 0, 1]] if is_used else [])


def test_the_actions_on_offer_stay_the_only_ones_without_other_masks() -> None:
    with closing(make_env(settings(offers=[DOORS], action_masks=False))) as env:
        assert env.reset(seed=0)[1]["action_mask"].sum() == 2


@pytest.mark.parametrize(
    ("describe", "texts"),
    [("info", ["new", "given 2"]), (f"{__name__}:as_words", ["the number 0", "the number 1"])],
)
def test_numbers_are_described_in_words(describe: str, texts: list[str]) -> None:
    made = make_env(settings(in_info=True, takes_text=False, describe=describe))
    with closing(made) as env:
        rows = [env.reset(seed=0)[0], env.step(2)[0]]
    assert [read_row(row)[0] for row in rows] == texts


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"describe": "os:system"}, "os:system is no function annotated to return a text"),
        ({"describe": f"{__name__}:as_number"}, "is no function annotated"),
        ({"describe": f"{__name__}:as_word"}, "has no as_word; did you mean as_words?"),
        ({"describe": "words"}, "env.describe=words"),
        ({"hide": (0,), "observe_reward": True}, "env.hide, env.observe_reward=true is for num"),
        ({"observation_filter": "MeanStdFilter"}, "MeanStdFilter is for numbers; leave it out"),
        ({"backend": "envpool"}, "env.backend=envpool is for numbers"),
    ],
)
def test_settings_that_do_not_fit_text_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(EnvError, match=words):
        make_env(settings(**changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"offers": [DOORS]},
            'its first step: ValueError: .* info\\["admissible_actions"\\] gives',
        ),
        ({"offers": [["go"] * 21]}, "21 admissible actions"),
        ({"offers": [["go"] * 5], "takes_text": False}, "5 admissible actions, and the action spa"),
        ({"offers": [DOORS], "max_text_length": 20}, "22 .*env.max_text_length=20; raise that"),
        ({"describe": "info", "takes_text": False}, 'info has no "text"'),
        ({"offers": ["go"]}, "is no list of texts"),
        ({"offers": [[1, 2]]}, "is no list of texts"),
        (
            {"offers": [None]},
            'its actions are texts, and info\\["admissible_actions"\\] gives none',
        ),
        (
            {"offers": [DOORS], "takes_text": False, "own_mask": [0, 1, 1, 1]},
            'both "admissible_actions" and "action_mask"; .* env.action_masks=false',
        ),
    ],
)
def test_what_an_environment_does_wrong_is_known_before_a_run(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(EnvError, match=words):
        try_env(settings(**changes))


def test_no_texts_are_offered_for_actions_that_are_numbers() -> None:
    env = Told(offers=[DOORS], takes_text=False)
    env.action_space = gym.spaces.Box(-1, 1, (2,))
    with pytest.raises(TypeError, match="Text or Discrete, and this is Box"):
        TextObservation(env, settings()).reset()


def test_an_action_that_is_not_on_offer_is_refused() -> None:
    with closing(make_env(settings(offers=[DOORS]))) as env:
        env.reset(seed=0)
        with pytest.raises(ValueError, match="action 2 is none of 2 admissible ones"):
            env.step(2)


def test_a_good_environment_of_text_can_be_tried() -> None:
    space, action_space = try_env(settings(offers=[DOORS, DOORS]))
    assert isinstance(space, TextRows)
    assert action_space == gym.spaces.Discrete(MAX_ACTIONS)
