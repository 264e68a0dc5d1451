"""How a request is refused: a status, a code for programs, a sentence for people.

Standard library alone: HAProxy's process reads it too.
"""

from __future__ import annotations

import json
from http import HTTPStatus


class RequestError(Exception):
    """A request cannot be answered.

    Args:
        status: of HTTP.
        code: a word that programs can rely on.
        message: what is wrong, why, and what to do.
        retry_after_s: when to try again, if that helps.
    """

    def __init__(
        self, status: int, code: str, message: str, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.retry_after_s = retry_after_s


class NoFiniteAnswer(RequestError):
    """A net has answered with NaN: it is broken, or the observation is like no other."""

    def __init__(self) -> None:
        super().__init__(
            422,
            "invalid_observation",
            "the policy has no finite answer to this observation; send one as the environment "
            "gives it",
        )


def error_body(code: str, message: str, request_id: str) -> bytes:
    """The one shape of all errors."""
    return json.dumps(
        {"error": {"code": code, "message": message, "request_id": request_id}}
    ).encode()


def code_of(status: int) -> str:
    """`not_found` for 404, and so on."""
    return HTTPStatus(status).phrase.lower().replace(" ", "_").replace("-", "_")
