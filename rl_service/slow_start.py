"""Why Ray does not start, from what it says, and what helps.

It gives a node 30 s, with no setting for that: a busy machine may need two tries.
"""

from __future__ import annotations

from pathlib import Path


def was_too_slow(said: str) -> bool:
    """Whether Ray gave a node up since it took too long, from what Ray said."""
    return "node timed out during startup" in said


def ray_remedy(problem: str) -> str:
    """What helps against what Ray says when it does not start."""
    folder = Path.home() / ".ray"
    if str(folder) in problem:
        return f"Ray keeps a token there: make {folder} writable, or set HOME to a folder that is"
    return "free memory, CPUs and room in /tmp, and try again"
