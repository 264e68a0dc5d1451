"""A new version on trial: it takes a share of the requests until it has shown what it does."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Literal

Verdict = Literal["running", "passed", "errors", "slow"]

MIN_REQUESTS = 100
"""That the new version must have answered before it may pass."""
MIN_SECONDS = 10.0
"""That it must have been on trial."""
MIN_COMPARED = 30
"""Requests of either version before their latencies are compared."""
MAX_ERROR_SHARE = 0.01
"""So that a failure among the first hundred ends the trial."""
MAX_SLOWDOWN, ALLOWED_MS = 2.0, 5.0
"""Its median latency may be so many times that of the old version, and this much more."""


class Canary:
    """Which requests a new version takes, and whether it has passed.

    Args:
        version: the new one.
        share: of the requests, above 0 and at most 1.
        clock: seconds.
    """

    def __init__(
        self, version: int, share: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.version = version
        self._share, self._clock = share, clock
        self._started_at = clock()
        self._due = 0.0
        self._num_requests = self._num_errors = 0
        self._old_s: deque[float] = deque(maxlen=500)
        self._new_s: deque[float] = deque(maxlen=500)

    def takes_next(self) -> bool:
        """Whether the next request goes to the new version: evenly spread, not by chance."""
        self._due += self._share
        if self._due < 1.0:
            return False
        self._due -= 1.0
        return True

    def answered(self, version: int, seconds: float) -> None:
        """A version has answered a request."""
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
        if self._num_errors > MAX_ERROR_SHARE * self._num_requests:
            return "errors"
        if min(len(self._old_s), len(self._new_s)) >= MIN_COMPARED:
            allowed = MAX_SLOWDOWN * median(self._old_s) + ALLOWED_MS / 1000.0
            if median(self._new_s) > allowed:
                return "slow"
        long_enough = self._clock() - self._started_at >= MIN_SECONDS
        return "passed" if long_enough and self._num_requests >= MIN_REQUESTS else "running"
