"""Around Serve: which headers reach it, which of its answers leave it, how long it waits."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rl_service.serving import edge


async def serve_like(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers as Serve does at `/404` and so on; elsewhere with what has reached it."""
    request = Request(scope, receive)
    status = request.url.path.removeprefix("/")
    response: Response
    if status.isdigit():
        response = PlainTextResponse("Path not found. Ping /-/routes.", int(status))
    else:
        headers = {name: value for name, value in request.headers.items() if name != "host"}
        body = (await request.body()).decode()
        response = JSONResponse({"headers": headers, "body": body})
    await response(scope, receive, send)


def ask(path: str, method: str = "GET", app: ASGIApp = serve_like, **arguments: Any) -> Any:
    async def play() -> httpx.Response:
        transport = httpx.ASGITransport(app=edge.Edge(app), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **arguments)

    return asyncio.run(play())


@pytest.mark.parametrize(("answered", "status"), [(404, 503), (503, 503), (500, 500), (408, 408)])
def test_errors_of_serves_own_get_our_shape(answered: int, status: int) -> None:
    reply = ask(f"/{answered}", headers={"X-Request-ID": "mine"})
    assert reply.status_code == status
    assert reply.json()["error"]["request_id"] == reply.headers["X-Request-ID"] == "mine"
    assert ("Retry-After" in reply.headers) == (status == 503)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_a_request_that_ends_without_a_reply_gets_one(begun: bool, fails: bool) -> None:
    async def lost(scope: Scope, receive: Receive, send: Send) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        if fails:
            raise RuntimeError

    reply = ask("/", app=lost, headers={"X-Request-ID": "mine"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (502, "replica_lost")
    assert reply.json()["error"]["request_id"] == "mine"


@pytest.mark.parametrize("given", [b"\xff", b"i" * 129, b"a b", b""])
def test_a_request_id_that_is_no_plain_word_is_replaced(given: bytes) -> None:
    shown = ask("/", headers={"X-Request-ID": given}).json()["headers"]["x-request-id"]
    assert shown != given.decode("latin-1") and len(shown) == 16


def test_clients_have_no_say_in_what_serve_reads_of_its_own() -> None:
    serves = {"X-Request-Timeout-Seconds": "1e-9", "serve_multiplexed_model_id": "m"}
    headers = ask("/", headers={**serves, "X-Request-ID": "mine", "Kept": "k"}).json()["headers"]
    assert (headers["x-request-id"], headers["kept"]) == ("mine", "k")
    assert headers.keys().isdisjoint(name.lower() for name in serves)


def test_a_body_reaches_serve_whole() -> None:
    assert ask("/", "POST", content=b"a" * 100_000).json()["body"] == "a" * 100_000


class Recorder:
    """A transport that keeps what is written to it."""

    def __init__(self, transport: asyncio.Transport, writes: list[bytes]) -> None:
        self.transport, self.writes = transport, writes

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        self.transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)


async def send_and_read(app: ASGIApp, sent: bytes) -> tuple[bytes, list[bytes]]:
    """All that a connection answers to some bytes, and the writes that it took."""
    writes: list[bytes] = []

    class Recorded(edge.Connection):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(Recorder(transport, writes))

    config = uvicorn.Config(edge.Edge(app), log_config=None, lifespan="off")
    state = uvicorn.server.ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Recorded(config, state, {}), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(sent)
        answer = await reader.read()
        writer.close()
        return answer, writes


def test_a_reply_leaves_in_one_piece() -> None:
    """Once HAProxy has seen a part of it, it asks no other replica if this one dies."""

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        head = [(b"content-length", b"2"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await asyncio.sleep(0.05)
        await send({"type": "http.response.body", "body": b"ab"})

    answer, writes = asyncio.run(send_and_read(slow, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b"\r\n\r\nab")
    assert writes == [answer]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nHost:", b""),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000, b"400"),
        (b"no HTTP\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", b"408"),
    ],
    ids=["nothing", "half a head", "a long head", "no HTTP", "no body"],
)
def test_a_connection_that_sends_no_request_is_closed(
    sent: bytes, status: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge, "HEAD_TIMEOUT_S", 0.2)

    answer, _ = asyncio.run(send_and_read(serve_like, sent))
    assert answer[9:12] == status
    if status:
        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert error.keys() == {"code", "message", "request_id"}
