"""Small text helpers for messages that a user can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is spelt most like `name`, or None if none is near."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


def one_line(value: object) -> str:
    """Text of an error or value, its line breaks folded into single blanks.

    What does not print, such as a terminal's control characters, becomes `?`.
    """
    text = " ".join(str(value).split())
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def brief(value: object, max_characters: int = 300) -> str:
    """One line of something that may be long: a stranger's text, or what a library says."""
    return one_line(value)[:max_characters]
