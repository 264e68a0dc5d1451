"""What nobody would think of asking: requests made of the OpenAPI document, and damaged ones."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from tests.conftest import WriteTestBundle
from tests.support.serving import NumberedBundles, build_local

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own dependencies' deprecations, when it is imported
    import schemathesis
    from hypothesis import HealthCheck, Phase, settings

EXAMPLES_PER_OPERATION = 40
MODES = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]


def application(folder: Path, write_test_bundle: WriteTestBundle) -> FastAPI:
    write_test_bundle(folder / "a")
    write_test_bundle(folder / "b", "Pendulum-v1")
    write_test_bundle(folder / "c", "tests.support.locks:Locks")
    sources = [NumberedBundles(name, {1: folder / name}) for name in ("a", "b", "c")]
    app, _, _ = asyncio.run(build_local(*sources))
    return app


@pytest.mark.filterwarnings("ignore")  # as above
@pytest.mark.parametrize("mode", MODES, ids=["as described", "not as described"])
def test_no_request_makes_the_service_fail(
    mode: schemathesis.GenerationMode, tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    app = application(tmp_path, write_test_bundle)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    num_operations = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        num_operations += 1
        if operation.body or mode == MODES[0]:  # any path is as described
            _fuzz(operation.as_strategy(generation_mode=mode))
    assert num_operations == 12


def _fuzz(strategy: object) -> None:
    from hypothesis import given

    @settings(
        max_examples=EXAMPLES_PER_OPERATION,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)  # type: ignore[arg-type]
    def ask(case: schemathesis.Case) -> None:
        reply = case.call()
        assert reply.status_code < 500, (reply.status_code, reply.text)
        if reply.status_code >= 400:
            assert reply.json()["error"].keys() == {"code", "message", "request_id"}

    ask()


NUM_DAMAGED = 500
ANSWER_S = 5.0
BODIES = {
    "POST /v1/policies/a/act": {"observations": [[0.0, 0.1, 0.2, 0.3]] * 3, "value": True},
    "POST /v1/policies/b/act": {
        "observation": [0.0, 0.1, 0.2],
        "history": {"observations": [[0.0, 0.1, 0.2]], "actions": [[0.5]]},
    },
    "POST /v1/sessions": {"policy": "a"},
    "DELETE /v1/sessions/none": None,
    "GET /v1/policies/a:1": None,
}


def request(line: str, body: object) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    return (
        f"{line} HTTP/1.1\r\nHost: test\r\nX-Request-ID: fuzz\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    ).encode() + content


def damaged(rng: random.Random, whole: bytes) -> bytes:
    """A few bytes of a request changed, lost, repeated or added."""
    content = bytearray(whole)
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(content) + 1)
        stop = min(len(content), start + rng.choice((1, 1, 2, 8, 64)))
        match rng.randrange(4):
            case 0:
                content[start:stop] = rng.randbytes(stop - start)
            case 1:
                del content[start:stop]
            case 2:
                content[start:start] = content[start:stop] * rng.choice((1, 200))
            case 3:
                content[start:start] = rng.choice(
                    (b"\xff\xfe", b"\0", b"NaN", b"[" * 2000, b"\r\n")
                )
    return bytes(content)


@contextlib.contextmanager
def running(app: FastAPI) -> Iterator[tuple[str, int]]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()
    finally:
        server.should_exit = True
        thread.join()


def answer(address: tuple[str, int], sent: bytes, close_half: bool) -> bytes:
    """What comes back; nothing if the request is not whole."""
    with socket.create_connection(address, ANSWER_S) as connection:
        connection.sendall(sent)
        if close_half:
            connection.shutdown(socket.SHUT_WR)
        connection.settimeout(0.05)  # a request that is not whole waits for the rest
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            return connection.recv(65536)
    return b""


def test_no_damaged_request_makes_the_service_fail_or_hang(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    rng, statuses = random.Random(0), set()
    wholes = [request(line, body) for line, body in BODIES.items()]
    with (
        running(application(tmp_path, write_test_bundle)) as address,
        httpx.Client(base_url=f"http://{address[0]}:{address[1]}", timeout=ANSWER_S) as client,
    ):
        for number in range(NUM_DAMAGED):
            sent = damaged(rng, rng.choice(wholes))
            told = answer(address, sent, close_half=number % 2 == 0)
            found = re.match(rb"HTTP/1.1 (\d{3}) ", told)
            statuses.add(found and int(found[1]))
            assert found is None or int(found[1]) < 500, (sent, told)
            assert client.get("/healthz").status_code == 200
    assert {200, 400, 404, None} <= statuses
