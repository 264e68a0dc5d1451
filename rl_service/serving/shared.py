"""What all replicas share: the sessions, which versions take traffic, each replica's metrics.

It runs as one actor beside the replicas; see `rl_service.serving.deployment`. It loads neither
torch nor a policy, answers from memory, and lives as long as the deployment.
"""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

from rl_service.serving.sessions import SessionState, SessionTable

_METRICS_LIFETIME_S = 10.0
"""A replica that has not reported for this long is gone."""


class SharedUnavailable(Exception):
    """The actor is gone; another one starts in a moment."""


class Rollout(NamedTuple):
    """What is known of a policy's versions."""

    stable: int | None
    """The one that takes the traffic; None before any replica has loaded one."""
    rejected: tuple[int, ...]
    """Those that failed a check or their trial and shall not be tried again."""


class SharedState:
    """Sessions, rollouts and metrics, in one process.

    Args:
        max_sessions: see `Limits`.
        session_ttl_s: see `Limits`.
    """

    def __init__(self, max_sessions: int, session_ttl_s: float) -> None:
        self._sessions = SessionTable(max_sessions, session_ttl_s)
        self._stable: dict[str, int] = {}
        self._rejected: dict[str, set[int]] = {}
        self._pages: dict[str, tuple[float, str]] = {}
        self._draining = False

    def drain(self) -> None:
        """The service is about to stop."""
        self._draining = True

    def is_draining(self) -> bool:
        return self._draining

    def open_session(self, policy: str, version: int, with_value: bool, pinned: bool) -> str:
        return self._sessions.open(policy, version, with_value, pinned)

    def read_session(self, session_id: str) -> SessionState | None:
        return self._sessions.read(session_id)

    def commit_session(self, session_id: str, state: SessionState) -> bool:
        return self._sessions.commit(session_id, state)

    def close_session(self, session_id: str) -> SessionState | None:
        return self._sessions.close(session_id)

    def rollout(self, policy: str) -> Rollout:
        rejected = tuple(sorted(self._rejected.get(policy, ())))
        return Rollout(self._stable.get(policy), rejected)

    def set_stable(self, policy: str, version: int) -> None:
        """A replica has moved all its traffic to a version."""
        self._stable[policy] = version

    def reject(self, policy: str, version: int) -> bool:
        """No replica shall try this version again; false if one has said so before."""
        if self._stable.get(policy) == version:
            del self._stable[policy]  # a replica that starts shall not begin with it
        known = self._rejected.setdefault(policy, set())
        is_new = version not in known
        known.add(version)
        return is_new

    def forgive(self, policy: str, version: int) -> None:
        """The version was promoted anew: it may be tried again."""
        self._rejected.get(policy, set()).discard(version)

    def exchange_metrics(self, replica: str, page: str) -> tuple[dict[str, str], int]:
        """Takes one replica's page; returns those of all replicas and the number of sessions."""
        now = time.monotonic()
        self._pages[replica] = (now, page)
        self._pages = {
            name: entry
            for name, entry in self._pages.items()
            if now - entry[0] < _METRICS_LIFETIME_S
        }
        return {name: text for name, (_, text) in self._pages.items()}, len(self._sessions)


class Shared(Protocol):
    """`SharedState` from another process: the same methods, to be awaited."""

    async def is_draining(self) -> bool: ...

    async def open_session(
        self, policy: str, version: int, with_value: bool, pinned: bool
    ) -> str: ...

    async def read_session(self, session_id: str) -> SessionState | None: ...

    async def commit_session(self, session_id: str, state: SessionState) -> bool: ...

    async def close_session(self, session_id: str) -> SessionState | None: ...

    async def rollout(self, policy: str) -> Rollout: ...

    async def set_stable(self, policy: str, version: int) -> None: ...

    async def reject(self, policy: str, version: int) -> bool: ...

    async def forgive(self, policy: str, version: int) -> None: ...

    async def exchange_metrics(self, replica: str, page: str) -> tuple[dict[str, str], int]: ...
