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
    """Other replies than 200, and connections that broke under a request."""
    num_reconnects: int
    """Connections that the server had closed between two requests."""


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
    started = time.perf_counter()
    clients = [_Client(address, request) for _ in range(num_clients)]
    await asyncio.gather(*(client.ask_until(started + seconds) for client in clients))
    took = time.perf_counter() - started
    times = sorted(seen for client in clients for seen in client.times)
    return Load(
        len(times) / took,
        1e3 * median(times),
        1e3 * times[int(0.99 * len(times))],
        sum(client.num_failed for client in clients),
        sum(client.num_reconnects for client in clients),
    )


class _Client:
    """One connection, one request at a time, no second try of a request."""

    def __init__(self, address: Address, request: bytes) -> None:
        self._address = address
        self._request = request
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.times: list[float] = []
        self.num_failed = 0
        self.num_reconnects = 0

    async def ask_until(self, end: float) -> None:
        while time.perf_counter() < end:
            try:
                reader, writer = await self._connected()
                started = time.perf_counter()
                status, closes = await _ask(reader, writer, self._request)
            except (OSError, asyncio.IncompleteReadError):
                self.num_failed += 1
                self._close()
                await asyncio.sleep(0.05)
                continue
            self.times.append(time.perf_counter() - started)
            self.num_failed += status != 200
            if closes:
                self._close()
        self._close()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is not None and self._streams[0].at_eof():
            self.num_reconnects += 1
            self._close()
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address)
        return self._streams

    def _close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[int, bool]:
    """Status, and whether the server closes the connection after this reply."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    [length] = [int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length")]
    await reader.readexactly(length)
    return int(lines[0].split()[1]), b"connection: close" in lines
