"""Episodes that the service remembers: what a policy with a history has seen in each of them.

Sessions live outside the replicas, in one actor, so that a replica may die between two steps (or
in one) and another goes on. A step is read, acted on, and committed only if nobody else has
committed that step meanwhile. A request that comes twice under one request id is answered twice
with the same action: a client may try again after a lost reply.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

_ID_BYTES = 18


class SessionState(NamedTuple):
    """What a replica needs to answer the next step."""

    policy: str
    version: int
    num_steps: int
    memory: bytes
    """The history; see `rl_service.serving.memory`."""
    episode_return: float
    last_request_id: str
    """With a digest of its body."""
    last_reply: bytes
    """To that request."""
    with_value: bool
    """Whether the replies tell the critic's value; its history is kept, then."""
    pinned: bool
    """Whether the client asked for this version: no other one answers, then."""


class TooManySessions(Exception):
    """The table is full."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(retry_after_s)
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[type[TooManySessions], tuple[int]]:
        return TooManySessions, (self.retry_after_s,)


@dataclass(slots=True)
class _Session:
    state: SessionState
    expires_at: float


class SessionTable:
    """Sessions by id, each forgotten some time after its last step.

    Args:
        max_sessions: more are refused; none is dropped in favour of a new one.
        ttl_s: seconds that a session lives after it was last used.
        clock: seconds, never going back.
    """

    def __init__(
        self, max_sessions: int, ttl_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_sessions, self._ttl_s, self._clock = max_sessions, ttl_s, clock
        self._sessions: OrderedDict[str, _Session] = OrderedDict()  # the next to expire first

    def __len__(self) -> int:
        self._forget_expired()
        return len(self._sessions)

    def open(
        self, policy: str, version: int, with_value: bool = False, pinned: bool = False
    ) -> str:
        """Id of a new session.

        Raises:
            TooManySessions: if the table is full.
        """
        self._forget_expired()
        if len(self._sessions) >= self._max_sessions:
            oldest = next(iter(self._sessions.values()))
            raise TooManySessions(max(1, round(oldest.expires_at - self._clock())))
        session_id = secrets.token_urlsafe(_ID_BYTES)
        state = SessionState(policy, version, 0, b"", 0.0, "", b"", with_value, pinned)
        self._put(session_id, state)
        return session_id

    def read(self, session_id: str) -> SessionState | None:
        """The state before the next step; None for a session that is unknown or expired."""
        self._forget_expired()
        session = self._sessions.get(session_id)
        return None if session is None else session.state

    def commit(self, session_id: str, state: SessionState) -> bool:
        """Takes the state after a step; false if that step was taken already, or is out of date."""
        current = self.read(session_id)
        if current is None or current.num_steps + 1 != state.num_steps:
            return False
        self._put(session_id, state)
        return True

    def close(self, session_id: str) -> SessionState | None:
        """Forgets a session and returns its last state."""
        self._forget_expired()
        session = self._sessions.pop(session_id, None)
        return None if session is None else session.state

    def _put(self, session_id: str, state: SessionState) -> None:
        self._sessions[session_id] = _Session(state, self._clock() + self._ttl_s)
        self._sessions.move_to_end(session_id)

    def _forget_expired(self) -> None:
        now = self._clock()
        while self._sessions:
            session_id, session = next(iter(self._sessions.items()))
            if session.expires_at > now:
                return
            del self._sessions[session_id]
