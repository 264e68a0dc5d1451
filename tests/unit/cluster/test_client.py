"""Ray's own client sends the token to the cluster alone, and nothing in its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from importlib.metadata import version
from pathlib import Path

import pytest

from rl_service.cluster.dashboard import Dashboard, ray_client
from tests.support.http_server import serving


class Asked(BaseHTTPRequestHandler):
    """Answers as a dashboard does, and keeps the credentials that it got."""

    seen: list[str | None]

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("Authorization"))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"ray_version": version("ray")}).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Asked.seen = []
    with serving(Asked) as url:
        yield url


@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
def test_the_token_takes_no_proxy_and_gives_way_to_no_password(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    (tmp_path / "netrc").write_text("default login me password mine\n")
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(variable, "")
    monkeypatch.setenv(name, "intranet.example")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for variable in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")  # where nobody listens
    ray_client(Dashboard(url, "right"))
    assert set(Asked.seen) == {"Bearer right"}
