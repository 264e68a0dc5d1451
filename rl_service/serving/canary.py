"""The trial of a new version: which requests it takes, and whether it has passed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from statistics import median
from typing import Literal

Verdict = Literal["running", "passed", "errors", "slow"]
MIN_REQUESTS = 100
"""That the new version must have answered before it may pass."""
MIN_SECONDS = 10.0
"""That it must have been on trial."""
MIN_COMPARED = 30
"""Requests of either version before their latencies are compared."""
REQUESTS_PER_ERROR = 100
"""A failure among so many requests ends the trial."""
KEPT_LATENCIES = 500
"""Of either version, the last ones."""
MAX_SLOWDOWN, ALLOWED_MS = 2.0, 5.0
"""Its median latency may be so many times that of the old version, and this much more."""


class Canary:
    """A new version on trial.

    Args:
        version: the new one.
        share: of the requests, above 0 and at most 1.
        before: latencies of the old version ahead of the trial, in seconds; they count where it
            answers too little during the trial, as with a share of 1.
        clock: seconds.
    """

    def __init__(
        self,
        version: int,
        share: float,
        before: Iterable[float] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.version = version
        self._share, self._clock = share, clock
        self._started_at = clock()
        self._due = 0.0
        self._num_requests = self._num_errors = 0
        self._before_s = list(before)
        self._old_s: deque[float] = deque(maxlen=KEPT_LATENCIES)
        self._new_s: deque[float] = deque(maxlen=KEPT_LATENCIES)

    def takes_next(self) -> bool:
        """Whether the next request goes to the new version: evenly spread, not by chance."""
        self._due += self._share
        if self._due < 1.0:
            return False
        self._due -= 1.0
        return True

    def answered(self, version: int, seconds: float) -> None:
        """The new version, or the old one, has answered a request."""
        if version == self.version:
            self._num_requests += 1
            self._new_s.append(seconds)
        else:
            self._old_s.append(seconds)

    def failed(self) -> None:
        """The new version has failed to answer."""
        self._num_requests += 1
        self._num_errors += 1

    def verdict(self) -> Verdict:
        if self._num_errors and self._num_errors * REQUESTS_PER_ERROR >= self._num_requests:
            return "errors"
        if self._is_slow():
            return "slow"
        long_enough = self._clock() - self._started_at >= MIN_SECONDS
        return "passed" if long_enough and self._num_requests >= MIN_REQUESTS else "running"

    def _is_slow(self) -> bool:
        old_s = self._old_s if len(self._old_s) >= MIN_COMPARED else self._before_s
        if min(len(old_s), len(self._new_s)) < MIN_COMPARED:
            return False
        return median(self._new_s) > MAX_SLOWDOWN * median(old_s) + ALLOWED_MS / 1000.0
