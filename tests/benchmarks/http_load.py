"""Clients that cost little beside a server on the same cores: bytes made once, plain sockets."""

from __future__ import annotations

import asyncio
import json
import time
from statistics import median
from typing import Any, NamedTuple

Address = tuple[str, int]


class Load(NamedTuple):
    """What some clients saw."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    num_failed: int
    """Other replies than 200, and broken connections."""


def request_bytes(address: Address, path: str, body: Any) -> bytes:
    """One POST of JSON on a connection that stays open."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def load(address: Address, request: bytes, num_clients: int, seconds: float) -> Load:
    """So many clients, each with one connection and one request at a time."""
    return asyncio.run(_load(address, request, num_clients, seconds))


async def _load(address: Address, request: bytes, num_clients: int, seconds: float) -> Load:
    times: list[float] = []
    started = time.perf_counter()
    end = started + seconds
    failed = await asyncio.gather(
        *(_client(address, request, end, times) for _ in range(num_clients))
    )
    took = time.perf_counter() - started
    times.sort()
    return Load(
        len(times) / took, 1e3 * median(times), 1e3 * times[int(0.99 * len(times))], sum(failed)
    )


async def _client(address: Address, request: bytes, end: float, times: list[float]) -> int:
    failed = 0
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    while time.perf_counter() < end:
        try:
            if connection is None:
                connection = await asyncio.open_connection(*address)
            started = time.perf_counter()
            status = await _ask(*connection, request)
        except (OSError, asyncio.IncompleteReadError):
            failed, connection = failed + 1, None
            await asyncio.sleep(0.05)
            continue
        times.append(time.perf_counter() - started)
        failed += status != 200
    if connection is not None:
        connection[1].close()
    return failed


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    [length] = [int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length")]
    await reader.readexactly(length)
    return int(lines[0].split()[1])
