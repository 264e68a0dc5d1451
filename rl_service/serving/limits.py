"""What one request, one service and one session may ask for."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from rl_service.config.group import PositiveFloat, PositiveInt


class Limits(BaseModel):
    """Bounds that keep one client from taking the service from all others."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_body_bytes: PositiveInt = 4 * 2**20
    """A batch of 4096 observations of 40 numbers takes 3 MB as text."""
    body_timeout_s: PositiveFloat = 30.0
    """For a whole body. HAProxy itself waits 10 s for one of up to 16 KB."""
    max_batch_size: PositiveInt = 4096
    """Observations in one request."""
    max_ongoing_requests: PositiveInt = 256
    """Of one replica, whose bodies have arrived; more are answered with 503 and `Retry-After`."""
    max_sessions: PositiveInt = 10_000
    """Of the service; at 4 KB each they fit in 40 MB."""
    session_ttl_s: PositiveFloat = 900.0
    """A session that nobody asks for this long is forgotten."""
    max_loaded_policies: PositiveInt = 8
    """Of one replica; the least recently used one is unloaded."""
    max_batch_rows: PositiveInt = 1024
    """Rows of several requests that go through the net together."""
