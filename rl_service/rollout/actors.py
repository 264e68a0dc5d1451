"""What Ray tells of the actors that sample."""

from __future__ import annotations

import re

from ray._private.state import actors
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError

from rl_service.common.text import one_line

_SHOWN_CHARACTERS = 300  # of what Ray says, which may be pages
_DEATHS = {
    "node has died": "its node died",
    "worker process has died": "its process died",
    "OutOfMemory": "it was killed for memory",
}


def reason_of(error: Exception) -> str:
    """What is behind an error of Ray, in a few words."""
    text = one_line(error)
    for told, short in _DEATHS.items():
        if told in text:
            return short
    if isinstance(error, RayActorError) and error.actor_init_failed:
        last = str(error).strip().splitlines()[-1]  # of the traceback: `module.Class: text`
        return re.sub(r"^[\w.]+\.(?=\w+:)", "", last)[:_SHOWN_CHARACTERS]
    cause = getattr(error, "cause", None) or error
    return f"{type(cause).__name__}: {one_line(cause)}"[:_SHOWN_CHARACTERS]


def is_placed(actor: ActorHandle) -> bool:
    """Whether an actor has its CPUs and a process; it may still be starting there.

    Before, its node is the one that its request waits at.
    """
    try:
        found = actors(actor._actor_id.hex())
    except RayError:
        return False
    return bool(found.get("Address", {}).get("Port"))
