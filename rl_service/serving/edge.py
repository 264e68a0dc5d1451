"""Around Serve in each process that listens for HTTP: a deadline, clean headers, one error shape.

With HAProxy these are the replicas, without it Serve's own proxy. They find it by
`RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http import auto

from rl_service.serving.haproxy import ERRORS, HEAD_TIMEOUT_S
from rl_service.serving.refusals import code_of, error_body

_MAX_HEAD_BYTES = 65_536
_FIRST_BYTES = 16_384
_REQUEST_ID = re.compile(rb"[!-~]{1,128}")
_JSON = "application/json"
_OF_SERVE = {
    b"serve-multiplexed-model-id",
    b"x-request-disconnect-disabled",
    b"x-request-timeout-seconds",
    b"x-session-id",
}
"""Headers that clients may not set; Serve also fails on bytes in them that are not UTF-8."""


def middlewares() -> list[Middleware]:
    """Called by Serve before it starts a server."""
    auto.AutoHTTPProtocol = Connection  # uvicorn looks it up here; Serve passes no other
    return [Middleware(Edge)]


class OneWrite:
    """A transport whose writes of one turn of the event loop leave together.

    uvicorn writes the head of a reply and then its body: if the replica died in between, HAProxy
    could not ask another one.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._held:
            self._transport.write(b"".join(self._held))
            self._held.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(auto.AutoHTTPProtocol):  # type: ignore[valid-type, misc]
    """One connection to uvicorn: closed if the head of a request takes too long, or is too long."""

    _deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(OneWrite(transport, self.loop))
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
            return
        if self._deadline is None:
            self._wait()
        self._head_bytes += len(data)
        if self._head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        request_id = secrets.token_hex(8)
        body = error_body(*ERRORS[400], request_id)
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
            f"content-length: {len(body)}\r\nx-request-id: {request_id}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _wait(self) -> None:
        self._head_bytes = 0
        self._deadline = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Edge:
    """Cleans what comes in for Serve, and gives errors of Serve's own our shape.

    Args:
        app: Serve's.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _clean(scope)
        if not scope["path"].startswith("/"):  # as in OPTIONS *
            await _error(400, *ERRORS[400], request_id)(scope, receive, send)
            return
        try:
            arrived = await _first_part(receive)
        except TimeoutError:
            await _error(408, *ERRORS[408], request_id)(scope, receive, send)
            return
        replaced = started = False
        head: Message | None = None

        async def receive_again() -> Message:
            return arrived.pop(0) if arrived else await receive()

        async def send_shaped(message: Message) -> None:
            nonlocal replaced, started, head
            if message["type"] == "http.response.start":
                response = _shaped(message, request_id)
                replaced = started = response is not None
                if response is not None:
                    await response(scope, receive, send)
                head = message  # to leave together with the body
                return
            if replaced:
                return
            started = True
            if head is not None:
                await send(head)
                head = None
            await send(message)

        try:
            await self._app(scope, receive_again, send_shaped)
        finally:
            if not started:  # so Serve's proxy ends a request whose replica has died
                await _error(502, *ERRORS[502], request_id)(scope, receive, send)


async def _first_part(receive: Receive) -> list[Message]:
    """What HAProxy waits for too: the whole body, or the beginning of a long one.

    Raises:
        TimeoutError: if it does not arrive.
    """
    messages: list[Message] = []
    size, more = 0, True
    async with asyncio.timeout(HEAD_TIMEOUT_S):
        while more and size < _FIRST_BYTES:
            messages.append(await receive())
            size += len(messages[-1].get("body", b""))
            more = messages[-1].get("more_body", False)
    return messages


def _clean(scope: Scope) -> str:
    """Leaves one request id in the headers, and returns it: the client's if it is a plain one."""
    given = [value for name, value in scope["headers"] if name == b"x-request-id"]
    plain = len(given) == 1 and _REQUEST_ID.fullmatch(given[0]) is not None
    request_id = given[0] if plain else secrets.token_hex(8).encode()
    scope["headers"] = [
        *(pair for pair in scope["headers"] if not _is_for_serve(pair[0])),
        (b"x-request-id", request_id),
    ]
    return request_id.decode()


def _is_for_serve(name: bytes) -> bool:
    return name == b"x-request-id" or name.replace(b"_", b"-") in _OF_SERVE


def _shaped(start: Message, request_id: str) -> Response | None:
    """What to answer instead, if this is the start of an error of Serve's own."""
    status = start["status"]
    is_json = Headers(raw=start.get("headers", [])).get("content-type") == _JSON
    if status < 400 or status == 499 or is_json:  # 499: the client has gone
        return None
    if status in (404, 503):  # Serve's: no application, or no replica of it
        return _error(503, *ERRORS[503], request_id)
    return _error(status, code_of(status), "Ray Serve could not answer this", request_id)


def _error(status: int, code: str, message: str, request_id: str) -> Response:
    headers = {"X-Request-ID": request_id, "Cache-Control": "no-store"}
    if status == 503:
        headers["Retry-After"] = "1"
    if status == 408:
        headers["Connection"] = "close"
    return Response(error_body(code, message, request_id), status, headers, _JSON)
