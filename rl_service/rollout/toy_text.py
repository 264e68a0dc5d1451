"""What gymnasium's toy-text environments show, in words.

For `env.describe`, such as `rl_service.rollout.toy_text:taxi`. As numbers, one observation of Taxi
has 500 entries, which is long for a prompt.
"""

from __future__ import annotations

_STOPS = ("red", "green", "yellow", "blue")


def frozen_lake(observation: int) -> str:
    """FrozenLake's own 4 x 4 map, which is always the same."""
    return f"row {observation // 4}, column {observation % 4}"


def cliff_walking(observation: int) -> str:
    """The grid of 4 x 12 cells."""
    return f"row {observation // 12}, column {observation % 12}"


def taxi(observation: int) -> str:
    """Taxi's grid of 5 x 5 cells with four stops."""
    rest, destination = divmod(int(observation), 4)
    rest, passenger = divmod(rest, 5)
    row, column = divmod(rest, 5)
    where = "in the taxi" if passenger == 4 else f"at {_STOPS[passenger]}"
    return (
        f"taxi at row {row}, column {column}; passenger {where}; destination {_STOPS[destination]}"
    )


def blackjack(observation: tuple[int, int, int]) -> str:
    """The player's sum, the dealer's card, and whether an ace of the player counts 11."""
    held, dealer, has_ace = observation
    ace = ", an ace counted as 11" if has_ace else ""
    return f"you hold {held}{ace}; the dealer shows {dealer}"
