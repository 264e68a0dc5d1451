"""The toy-text environments in words."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import gymnasium as gym

from custom_models.text_rows import read_row
from rl_service.config.settings import EnvSettings
from rl_service.rollout import toy_text
from rl_service.rollout.envs import make_env


def test_a_taxi_is_where_its_own_environment_says() -> None:
    with closing(gym.make("Taxi-v3")) as env:
        taxi: Any = env.unwrapped
        for state in range(500):
            row, column, passenger, destination = taxi.decode(state)
            stops = ["red", "green", "yellow", "blue"]
            where = "in the taxi" if passenger == 4 else f"at {stops[passenger]}"
            assert toy_text.taxi(state) == (
                f"taxi at row {row}, column {column}; passenger {where}; "
                f"destination {stops[destination]}"
            )
        # The stops' names are those of the map's letters.
        letters = ["".join(line).replace("|", ":").split(":") for line in taxi.desc.astype(str)]
        found = [letters[1 + row][1 + column].strip() for row, column in taxi.locs]
        assert found == ["R", "G", "Y", "B"]


def test_places_and_cards_in_words() -> None:
    assert toy_text.frozen_lake(6) == "row 1, column 2"
    assert toy_text.cliff_walking(36) == "row 3, column 0"
    assert toy_text.blackjack((14, 10, 0)) == "you hold 14; the dealer shows 10"
    expected = "you hold 18, an ace counted as 11; the dealer shows 1"
    assert toy_text.blackjack((18, 1, 1)) == expected


def test_an_environment_can_be_read_in_these_words() -> None:
    settings = EnvSettings(id="Taxi-v3", describe="rl_service.rollout.toy_text:taxi")
    with closing(make_env(settings)) as env:
        obs, info = env.reset(seed=0)
        state = env.unwrapped.s  # type: ignore[attr-defined]
        assert read_row(obs) == (toy_text.taxi(int(state)), [])
        assert info["action_mask"].shape == (6,)
