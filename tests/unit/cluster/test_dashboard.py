"""What can be wrong with an address or a token is one line each, told soon."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import httpx
import pytest

from rl_service.cluster import dashboard as dashboard_module
from rl_service.cluster.dashboard import Dashboard, Versions
from rl_service.common.errors import ClusterError
from tests.support.http_server import serving

TOKEN = "right"


class Answers(BaseHTTPRequestHandler):
    """The routes of a Ray dashboard that are asked first, with its words for a bad token."""

    def do_GET(self) -> None:
        given = self.headers.get("Authorization")
        if given != f"Bearer {TOKEN}":
            self._send(401 if given is None else 403, "Unauthorized: Missing authentication token")
        elif self.path == "/api/version":
            self._send(200, json.dumps({"ray_version": "2.60.0"}))
        elif self.path == "/api/v0/cluster_metadata":
            self._send(200, json.dumps({"data": {"pythonVersion": "3.11.9"}}))
        elif self.path == "/api/v0/nodes?limit=10000":
            result = [{"node_name": "worker-1", "state": "ALIVE"}]
            self._send(200, json.dumps({"data": {"result": {"result": result}}}))
        elif self.path == "/api/v0/nodes":
            self._send(429, "Max number of in-progress requests=100 reached.")
        elif self.path == "/api/jobs/one/logs":
            self._send(
                500, "Traceback (most recent call last):\n  ...\nOSError: the node is gone\n"
            )
        else:
            self._send(200, "<html>")

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with serving(Answers) as url:
        yield url


def test_versions_come_with_the_right_token_and_without_a_proxy(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert Dashboard(url, TOKEN, "x").versions() == Versions("2.60.0", "3.11.9")


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (None, "asks for a token; set RAY_AUTH_TOKEN"),
        ("wrong", "does not take the token from THE SOURCE; set RAY_AUTH_TOKEN"),
    ],
)
def test_a_missing_and_a_wrong_token_are_told_apart(
    url: str, token: str | None, message: str
) -> None:
    with pytest.raises(ClusterError, match=message):
        Dashboard(url, token, "THE SOURCE").versions()


def test_what_is_no_ray_dashboard_is_told_with_the_usual_ports(url: str) -> None:
    with pytest.raises(ClusterError, match=r"not a Ray dashboard; .*:8265 \(6379"):
        Dashboard(url, TOKEN).get("/")


def test_more_nodes_are_listed_than_ray_s_usual_hundred(url: str) -> None:
    assert Dashboard(url, TOKEN).nodes() == [{"node_name": "worker-1", "state": "ALIVE"}]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (
            "/api/v0/nodes",
            "429 Too Many Requests (Max number of in-progress requests=100 reached.)",
        ),
        ("/api/jobs/one/logs", "500 Internal Server Error (OSError: the node is gone)"),
    ],
)
def test_a_dashboard_that_fails_says_why(url: str, path: str, said: str) -> None:
    with pytest.raises(ClusterError) as error:
        Dashboard(url, TOKEN).get(path)
    assert str(error.value).startswith(f"the dashboard at {url} answered {said}; try again, or")


def test_an_address_where_nobody_listens_is_told_with_what_to_do() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(ClusterError, match=r"\(connection refused\); check host and port"):
            Dashboard(url).versions()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", r"no Ray cluster answers .* \(server disconnected without sending a response\);"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
            r"no Ray cluster answers .* \(peer closed connection without sending complete message",
        ),
        (b"\0\0\x06\x04\0\0\0\0\0\0\x05\0\0\x40\0", "is not a Ray dashboard"),  # gRPC, as on 6379
    ],
)
def test_a_dashboard_that_dies_is_told_from_what_is_none(answer: bytes, message: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer_and_end() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=answer_and_end)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ClusterError, match=message):
            Dashboard(url).versions()
        thread.join()


def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (dashboard_module._TIMEOUT.read or 99) + (dashboard_module._TIMEOUT.connect or 99) < 15
    monkeypatch.setattr(dashboard_module, "_TIMEOUT", httpx.Timeout(0.3))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ClusterError, match=r"no Ray cluster answers .* \(it takes too long\)"):
            Dashboard(url).versions()
