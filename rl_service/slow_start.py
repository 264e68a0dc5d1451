"""Ray gives a node 30 s to start, with no setting for that: a busy machine may need two tries."""

from __future__ import annotations


def was_too_slow(said: str) -> bool:
    """Whether Ray gave a node up since it took too long, from what Ray said."""
    return "node timed out during startup" in said
