"""What strangers and accidents do to a service: other addresses, slow or odd bytes, sudden ends."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path

import httpx
import pytest

from rl_service.cluster.nodes import command_line
from tests.support.services import TOKEN, Running, Start, descendants, wait_until

OBSERVATION = {"observation": [0.0] * 8}
ACT = "/v1/policies/lunarlander/act"
HEADERS = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
ANSWER_S = 2.0
MEMORY_BYTES = 50e6


def serve(start: Start, *arguments: str, port: int = 0, **environment: str) -> Running:
    process, url, output = start(
        *("zoo:lunarlander", "--replicas", "2", *arguments),
        port=port,
        RL_SERVICE_TOKENS=f"tests:{TOKEN}",
        **environment,
    )
    return Running(url, process, None, None, output)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=["1", "0"], ids=["HAProxy", "without HAProxy"])
def service(start: Start, request: pytest.FixtureRequest) -> Iterator[Running]:
    yield serve(start, "--host", "::", RAY_SERVE_ENABLE_HA_PROXY=request.param)
    start.stop()


def port_of(service: Running) -> int:
    return int(service.url.rpartition(":")[2])


def connect(service: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port_of(service)), timeout=60.0)


def head(length: int) -> bytes:
    fields = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
    return f"POST {ACT} HTTP/1.1\r\nHost: x\r\n{fields}Content-Length: {length}\r\n\r\n".encode()


def acts(service: Running) -> bool:
    reply = httpx.post(
        f"{service.url}{ACT}", json=OBSERVATION, headers=HEADERS, timeout=10 * ANSWER_S
    )
    return reply.status_code == 200


def rest(connection: socket.socket) -> bytes:
    """All that comes before the service closes it."""
    with connection:
        return b"".join(iter(lambda: connection.recv(65536), b""))


def memory(service: Running) -> int:
    """Resident bytes of the processes that listen."""
    pids = [
        pid
        for pid in descendants(service.process.pid)
        if re.search("haproxy.cfg|ray::Proxy|ray::ServeReplica", command_line(pid))
    ]
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
    return sum(pages) * resource.getpagesize()


def test_it_answers_at_every_address(service: Running) -> None:
    for host in ("127.0.0.1", "127.0.0.2", "[::1]"):
        reply = httpx.get(f"http://{host}:{port_of(service)}/readyz", timeout=10 * ANSWER_S)
        assert reply.json()["status"] == "ready"


def test_idle_connections_stop_nobody_and_are_closed(service: Running) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(10_000, hard), hard))
    try:
        connections = [connect(service) for _ in range(4200)]
        healthy = httpx.get(f"{service.url}/healthz", timeout=ANSWER_S)
        assert healthy.status_code == 200
        for connection in connections:
            rest(connection)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_bodies_that_do_not_arrive_are_no_work(service: Running) -> None:
    stalled = [connect(service) for _ in range(300)]
    for i, connection in enumerate(stalled):
        connection.sendall(head(100_000) + b" " * (i % 2 * 40_000))
    assert acts(service)
    replies = [rest(connection) for connection in stalled]
    assert {reply[9:12] for reply in replies} == {b"408"}
    errors = [json.loads(reply.partition(b"\r\n\r\n")[2])["error"] for reply in replies]
    assert {error["code"] for error in errors} == {"request_timeout"}


ODD = {
    "garbage": b"\0\xff\r\n\r\n",
    "a head that never ends": b"GET /healthz HTTP/1.1\r\n" + b"X: " + b"a" * 200_000,
    "a slow head": b"GET /healthz HT",
    "bytes in a name": b"GET / HTTP/1.1\r\nHost: x\r\nX\xff: a\r\n\r\n",
    "bytes in a path": b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    "bytes in an id": b"GET /v1/policies HTTP/1.1\r\nHost: x\r\nX-Request-ID: \xff\xfe\r\n\r\n",
    "a long id": b"GET /v1 HTTP/1.1\r\nHost: x\r\nX-Request-ID: " + b"i" * 500 + b"\r\n\r\n",
    "Serve's deadline": b"GET /v1 HTTP/1.1\r\nHost: x\r\nX-Request-Timeout-Seconds: 1e-9\r\n\r\n",
    "a star": b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    "a negative length": head(-1),
    "a bad chunk": head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + b"zz\r\n",
    "a body that is closed": head(1000) + b"{",
}


@pytest.mark.parametrize("data", ODD.values(), ids=ODD)
def test_odd_bytes_get_an_error_or_nothing(service: Running, data: bytes) -> None:
    with connect(service) as connection:
        reply = HTTPResponse(connection)
        try:
            connection.sendall(data)
            if data == ODD["a body that is closed"]:
                connection.shutdown(socket.SHUT_WR)
            reply.begin()
        except (ConnectionError, HTTPException):
            return
        assert 400 <= reply.status < 500
        if reply.getheader("Content-Type") != "text/html":  # HAProxy's own: see the guide
            error = json.loads(reply.read())["error"]
            assert error["request_id"] == reply.getheader("X-Request-ID")


def test_random_bytes_cost_neither_time_nor_memory(service: Running) -> None:
    rng = random.Random(7)
    before = memory(service)
    whole = head(len(json.dumps(OBSERVATION))) + json.dumps(OBSERVATION).encode()
    statuses = set()
    for _ in range(500):
        data = bytearray(whole[: rng.randrange(1, len(whole) + 1)])
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with connect(service) as connection:
            connection.settimeout(ANSWER_S)
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            try:
                statuses.add(connection.recv(65536)[9:10])
            except ConnectionError:
                statuses.add(b"")
    assert statuses <= {b"", b"2", b"4"}
    assert acts(service)
    assert memory(service) - before < MEMORY_BYTES


class RawClient(threading.Thread):
    """Asks on one connection, again and again, and never asks twice for one reply."""

    def __init__(self, service: Running, ended: threading.Event) -> None:
        super().__init__()
        self.port, self.ended = port_of(service), ended
        self.replies, self.lost = 0, list[str]()
        self.start()

    def run(self) -> None:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        while not self.ended.is_set():
            try:
                connection.connect()
            except ConnectionRefusedError:  # nothing is lost that was not sent
                time.sleep(0.05)
                continue
            self.ask_until_closed(connection)
            connection.close()

    def ask_until_closed(self, connection: HTTPConnection) -> None:
        while connection.sock is not None and not self.ended.is_set():
            try:
                connection.request("POST", ACT, json.dumps(OBSERVATION), HEADERS)
                reply = connection.getresponse()
                text = reply.read().decode()
                if reply.status == 200:
                    self.replies += 1
                else:
                    self.lost.append(text)
            except (OSError, HTTPException) as error:
                self.lost.append(repr(error))
                return


@pytest.fixture
def ended() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def haproxy_file(service: Running) -> Path:
    files = set[str]()
    while not files:  # between two looks at the processes one may take over from another
        words = (command_line(pid).split() for pid in descendants(service.process.pid))
        files = {word for line in words for word in line if word.endswith("/haproxy.cfg")}
    [file] = files
    return Path(file)


def ask_haproxy(service: Running, command: str) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(haproxy_file(service).with_name("admin.sock")))
        connection.sendall(f"{command}\n".encode())
        return rest(connection).decode()


def replicas_up(service: Running) -> set[str]:
    """Backend and name of the replicas that HAProxy asks, by its own account."""
    lines = ask_haproxy(service, "show stat").removeprefix("# ").splitlines()
    return {
        f"{row['pxname']}/{row['svname']}"
        for row in csv.DictReader(lines)
        if row["svname"].startswith("SERVE_REPLICA") and row["status"].startswith("UP")
    }


def kill_a_replica(service: Running, clients: list[RawClient]) -> int:
    """Returns its process id once HAProxy asks two again: until then only one is left."""
    wait_until(lambda: len(replicas_up(service)) == 2)
    before, pid = replicas_up(service), service.replica_pids()[0]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(replicas_up(service)) == 2 and replicas_up(service) != before)
    answer_more(clients)  # and no connection is left at a HAProxy that does not know the new one
    return pid


def answer_more(clients: list[RawClient]) -> None:
    before = [client.replies for client in clients]
    wait_until(lambda: all(c.replies > b + 5 for c, b in zip(clients, before, strict=True)))


def test_killed_replicas_and_a_stop_lose_no_request(start: Start, ended: threading.Event) -> None:
    service = serve(start)
    clients = [RawClient(service, ended) for _ in range(16)]
    killed = [kill_a_replica(service, clients) for _ in range(2)]
    with httpx.Client(base_url=service.url, timeout=30.0) as client:
        assert client.get("/readyz").status_code == 200
        service.process.send_signal(signal.SIGTERM)
        status = 200
        while status == 200:  # readiness ends before the service does
            status = client.get("/readyz").status_code
        assert status == 503
    assert service.process.wait(60) == 0
    ended.set()
    for raw in clients:
        raw.join()
    assert [lost for raw in clients for lost in raw.lost] == []
    said = service.output.read_text().partition("stopping: ")[2].splitlines()
    # Ray may tell only now of the replicas that were killed above.
    late = tuple(f"Worker PID: {pid} " for pid in killed)
    assert [line for line in said if "raylet" in line and not any(p in line for p in late)] == []


def test_a_replica_that_dies_behind_serves_own_proxy_loses_no_request(
    start: Start, ended: threading.Event
) -> None:
    service = serve(start)
    clients = [RawClient(service, ended) for _ in range(16)]
    wait_until(lambda: len(replicas_up(service)) == 2)
    for replica in replicas_up(service):  # a busy machine may miss HAProxy's health checks
        ask_haproxy(service, f"set server {replica} state maint")
    answer_more(clients)
    os.kill(service.replica_pids()[0], signal.SIGKILL)
    wait_until(lambda: len(replicas_up(service)) == 1)  # the new one
    answer_more(clients)
    ended.set()
    for raw in clients:
        raw.join()
    assert [lost for raw in clients for lost in raw.lost] == []


def test_without_haproxy_a_replica_that_dies_is_told_in_the_usual_shape(
    start: Start, ended: threading.Event
) -> None:
    service = serve(start, RAY_SERVE_ENABLE_HA_PROXY="0")
    clients = [RawClient(service, ended) for _ in range(16)]
    while not any(raw.lost for raw in clients):
        answer_more(clients)
        os.kill(service.replica_pids()[0], signal.SIGKILL)
        wait_until(lambda: len(service.replica_pids()) == 2)
    answer_more(clients)
    ended.set()
    for raw in clients:
        raw.join()
    assert {json.loads(lost)["error"]["code"] for raw in clients for lost in raw.lost} == {
        "replica_lost"
    }


def test_a_killed_service_leaves_nothing_that_the_next_one_misses(start: Start) -> None:
    service = serve(start)
    file = haproxy_file(service)
    service.process.kill()
    service.process.wait()
    again = serve(start, port=port_of(service))
    assert acts(again)
    assert not file.exists()
