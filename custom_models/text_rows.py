"""Text as an observation: a row of numbers, so that nothing between env and actor knows of it.

A row holds Unicode code points, exact in float32, and zeros behind them. Actions that are
admissible at this step alone stand behind the text, each after a `SEPARATOR`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from custom_models.spaces import FloatArray

MAX_ACTIONS = 20
"""Most admissible actions at a step."""
LARGEST_CODE_POINT = 0x10FFFF
SEPARATOR = "\x1e"
"""Unicode's record separator."""
_ENCODING = "utf-32-le"


def text_row(text: str, actions: Sequence[str], max_length: int) -> FloatArray:
    """The row (max_length,) of a text and its admissible actions, if there are any.

    Raises:
        ValueError: if that is too long, or if the actions could not be separated from the text.
    """
    if len(actions) > MAX_ACTIONS:
        raise ValueError(
            f"there are {len(actions)} admissible actions, and a policy chooses among "
            f"{MAX_ACTIONS} at most; offer fewer"
        )
    if any(not action.strip() for action in actions):
        raise ValueError("an admissible action is empty; give each one a text")
    if any(mark in part for part in (text, *actions) for mark in (SEPARATOR, "\0")):
        raise ValueError(
            "the text or an admissible action has the character U+0000 or U+001E, which separate "
            "them; leave it out"
        )
    whole = SEPARATOR.join([text, *actions])
    if len(whole) > max_length:
        raise ValueError(
            f"the text has {len(whole)} characters, its admissible actions included, more than "
            f"env.max_text_length={max_length}; raise that"
        )
    row = np.zeros(max_length, np.float32)
    row[: len(whole)] = np.frombuffer(whole.encode(_ENCODING), "<u4")
    return row


def read_row(row: FloatArray) -> tuple[str, list[str]]:
    """The text of a row (O,), and the admissible actions.

    Raises:
        ValueError: if its numbers are no code points.
    """
    if not ((row >= 0) & (row <= LARGEST_CODE_POINT)).all():
        raise ValueError("the observation is no text: its numbers are no Unicode code points")
    whole = row.astype("<u4").tobytes().decode(_ENCODING).rstrip("\0")
    text, *actions = whole.split(SEPARATOR)
    return text, actions
