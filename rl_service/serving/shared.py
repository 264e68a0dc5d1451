"""What all replicas share: the sessions, which versions take traffic, each replica's metrics.

It runs as one actor beside the replicas; see `rl_service.serving.deployment`. It loads neither
torch nor a policy, answers from memory, and lives as long as the deployment.

Sessions live here so that another replica can continue when one dies between two steps, or in one.
A step is read, acted on, and committed only if no other replica has committed that step meanwhile.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

_ID_BYTES = 18
_METRICS_LIFETIME_S = 10.0
"""A replica that has not reported for this long is gone."""
_LATENCY_S = (0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


class SharedUnavailable(Exception):
    """The actor is gone; another one starts in a moment."""


class TooManySessions(Exception):
    """The table is full."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(retry_after_s)
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[type[TooManySessions], tuple[int]]:
        return TooManySessions, (self.retry_after_s,)


class SessionState(NamedTuple):
    """What a replica needs to answer the next step of an episode."""

    policy: str
    version: int
    with_value: bool = False
    """Whether replies give the critic's value; its history is kept, then."""
    pinned: bool = False
    """Whether the client asked for this version: no other one answers, then."""
    num_steps: int = 0
    memory: bytes = b""
    """The history: float32 observations and actions, step by step."""
    episode_return: float = 0.0
    last_request_id: str = ""
    """With a digest of its body."""
    last_reply: bytes = b""
    """To that request."""


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
        self._sessions: OrderedDict[str, tuple[SessionState, float]] = OrderedDict()
        """With the time at which each expires; the next to expire first."""

    def num_sessions(self) -> int:
        self._forget_expired()
        return len(self._sessions)

    def open_session(self, state: SessionState) -> str:
        """Id of a new session.

        Raises:
            TooManySessions: if the table is full.
        """
        self._forget_expired()
        if len(self._sessions) >= self._max_sessions:
            _, expires_at = next(iter(self._sessions.values()))
            raise TooManySessions(max(1, round(expires_at - self._clock())))
        session_id = secrets.token_urlsafe(_ID_BYTES)
        self._put(session_id, state)
        return session_id

    def read_session(self, session_id: str) -> SessionState | None:
        """The state before the next step; None for a session that is unknown or expired."""
        self._forget_expired()
        state, _ = self._sessions.get(session_id, (None, 0.0))
        return state

    def commit_session(self, session_id: str, state: SessionState) -> bool:
        """Takes the state after a step; false if that step was taken already, or is out of date."""
        current = self.read_session(session_id)
        if current is None or current.num_steps + 1 != state.num_steps:
            return False
        self._put(session_id, state)
        return True

    def close_session(self, session_id: str) -> SessionState | None:
        """Forgets a session and returns its last state."""
        self._forget_expired()
        state, _ = self._sessions.pop(session_id, (None, 0.0))
        return state

    def _put(self, session_id: str, state: SessionState) -> None:
        self._sessions[session_id] = state, self._clock() + self._ttl_s
        self._sessions.move_to_end(session_id)

    def _forget_expired(self) -> None:
        now = self._clock()
        while self._sessions:
            session_id, (_, expires_at) = next(iter(self._sessions.items()))
            if expires_at > now:
                return
            del self._sessions[session_id]


class KnownVersions(NamedTuple):
    """What the replicas have found out about a policy's versions."""

    stable: int | None
    """The one that takes the traffic; None before any replica has loaded one."""
    rejected: tuple[int, ...]
    """Those that failed a check or their trial and are not tried again."""


class SharedState(SessionTable):
    """Sessions, versions and metrics, in one process; arguments as of `SessionTable`."""

    def __init__(self, max_sessions: int, session_ttl_s: float) -> None:
        super().__init__(max_sessions, session_ttl_s)
        self._stable: dict[str, int] = {}
        self._rejected: dict[str, set[int]] = {}
        self._pages: dict[str, tuple[float, str]] = {}
        self._draining = False

    def drain(self) -> None:
        """The service is about to stop."""
        self._draining = True

    def is_draining(self) -> bool:
        return self._draining

    def known_versions(self, policy: str) -> KnownVersions:
        rejected = tuple(sorted(self._rejected.get(policy, ())))
        return KnownVersions(self._stable.get(policy), rejected)

    def set_stable(self, policy: str, version: int) -> None:
        """A replica has moved all its traffic to a version."""
        self._stable[policy] = version

    def reject(self, policy: str, version: int) -> bool:
        """Keeps all replicas from trying this version again; false if it was rejected before."""
        if self._stable.get(policy) == version:
            del self._stable[policy]  # so that no new replica starts with it
        known = self._rejected.setdefault(policy, set())
        is_new = version not in known
        known.add(version)
        return is_new

    def forgive(self, policy: str, version: int) -> None:
        """The version was promoted again: it may be tried again."""
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
        return {name: text for name, (_, text) in self._pages.items()}, self.num_sessions()


class Shared(Protocol):
    """`SharedState` from another process: the same methods, to be awaited."""

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]: ...


class ServingMetrics:
    """What a replica counts. Labels hold names that the operator chose, nothing of a request."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.requests = counter(
            "rl_service_requests",
            "Requests by route, policy and status.",
            ("route", "policy", "status"),
        )
        self.latency = histogram(
            "rl_service_request_latency_seconds",
            "Time from the request's first byte in the replica to the last of the reply.",
            ("route",),
            buckets=_LATENCY_S,
        )
        self.errors = counter("rl_service_errors", "Refused or failed requests by code.", ("code",))
        self.batch_rows = histogram(
            "rl_service_batch_rows",
            "Observations that went through the net together.",
            ("policy",),
            buckets=_ROWS,
        )
        self.actions = counter(
            "rl_service_actions", "Actions by policy and version.", ("policy", "version")
        )
        self.ongoing = gauge(
            "rl_service_ongoing_requests", "Requests that the replica is answering."
        )
        self.version = gauge(
            "rl_service_policy_version", "Version that takes the traffic.", ("policy",)
        )
        self.rejected = counter(
            "rl_service_rejected_versions",
            "Versions that did not take over, by reason.",
            ("policy", "reason"),
        )

    def page(self) -> str:
        return generate_latest(self.registry).decode()


def merged(pages: dict[str, str], num_sessions: int | None = None) -> str:
    """One page of the pages of several replicas, each sample with its replica's label.

    Args:
        pages: by replica.
        num_sessions: of the whole service; None if the actor does not answer.
    """
    heads: dict[str, str] = {}
    samples: dict[str, list[str]] = {}
    for replica, page in sorted(pages.items()):
        for family in text_string_to_metric_families(page):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            heads[name] = f"# HELP {name} {family.documentation}\n# TYPE {name} {family.type}"
            samples.setdefault(name, []).extend(
                _line(s.name, {**s.labels, "replica": replica}, s.value)
                for s in family.samples
                if not s.name.endswith("_created")
            )
    parts = [line for name, head in heads.items() for line in (head, *samples[name])]
    if num_sessions is not None:
        parts += [
            "# HELP rl_service_sessions Sessions that are open.",
            "# TYPE rl_service_sessions gauge",
            f"rl_service_sessions {num_sessions}",
        ]
    return "".join(f"{part}\n" for part in parts)


def _line(name: str, labels: dict[str, str], value: float) -> str:
    inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{inner}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
