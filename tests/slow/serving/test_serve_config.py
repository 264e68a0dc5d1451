"""`serve deploy` with the shipped config, on a Ray cluster that somebody else has started."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml

from rl_service.serving.client import PolicyClient, PolicyServiceError
from tests.support.services import ROOT, START_S, TOKEN, descendants, wait_until

BIN = Path(sys.executable).parent
OBSERVATION = [0.0] * 8


class Head(NamedTuple):
    """A Ray head with a dashboard, which takes Serve configs."""

    folder: Path
    dashboard: str
    environment: dict[str, str]

    def deploy(self, config: dict[str, Any]) -> None:
        file = self.folder / "config.yaml"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        subprocess.run(
            [BIN / "serve", "deploy", "--address", self.dashboard, file],
            env=self.environment,
            check=True,
            capture_output=True,
            timeout=120,
        )

    def application(self) -> dict[str, Any]:
        """What Serve says of ours."""
        reply = httpx.get(f"{self.dashboard}/api/serve/applications/", timeout=30.0)
        found: dict[str, Any] = reply.json()["applications"]["rl-service"]
        return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    folder = Path(tempfile.mkdtemp(prefix="rl-", dir="/tmp"))  # short: Ray's sockets live below it
    port = free_port()
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    environment.pop("RAY_ADDRESS", None)
    with (folder / "ray.txt").open("w") as output:
        process = subprocess.Popen(
            [
                *(BIN / "ray", "start", "--head", "--block", "--num-cpus=4"),
                *(f"--port={free_port()}", f"--ray-client-server-port={free_port()}"),
                *("--include-dashboard=true", f"--dashboard-port={port}"),
                *("--dashboard-agent-listen-port=0", "--node-ip-address=127.0.0.1"),
                *("--object-store-memory=100000000", f"--temp-dir={folder / 'ray'}"),
            ],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        found = Head(folder, f"http://127.0.0.1:{port}", environment)
        wait_until(lambda: answers(process, folder, f"{found.dashboard}/api/serve/applications/"))
        yield found
    finally:
        end(process, folder)
        shutil.rmtree(folder, ignore_errors=True)


def answers(process: subprocess.Popen[bytes], folder: Path, url: str) -> bool:
    assert process.poll() is None, (folder / "ray.txt").read_text()
    try:
        return httpx.get(url, timeout=5.0).status_code == 200
    except httpx.HTTPError:
        return False


def end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """The head, and whatever it has started: each process has the folder as its HOME."""
    pids = descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid in pids:
        with contextlib.suppress(OSError):
            if f"HOME={folder}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                os.kill(pid, signal.SIGKILL)


def test_the_shipped_config_asks_for_tokens_where_others_can_reach_it(head: Head) -> None:
    config = yaml.safe_load((ROOT / "deploy" / "serve.yaml").read_text(encoding="utf-8"))
    [application] = config["applications"]
    config["http_options"] = {"host": "0.0.0.0", "port": free_port()}
    application["args"] |= {"min_replicas": 1, "log_folder": str(head.folder / "log")}
    head.deploy(config)
    wait_until(lambda: head.application()["status"] == "DEPLOY_FAILED")
    message = head.application()["message"]
    assert "bind to host 0.0.0.0, which other machines can reach" in message
    assert "give token_file in its args" in message

    token_file = head.folder / "tokens"
    token_file.write_text(f"tests: {TOKEN}\n", encoding="utf-8")
    application["args"]["token_file"] = str(token_file)
    head.deploy(config)
    wait_until(lambda: head.application()["status"] == "RUNNING", START_S)
    url = f"http://127.0.0.1:{config['http_options']['port']}"
    with PolicyClient(url, TOKEN) as client:
        answered = client.act("lunarlander", OBSERVATION)
        assert (answered.version, answered.action in range(4)) == (1, True)
    with PolicyClient(url) as stranger, pytest.raises(PolicyServiceError) as refused:
        stranger.act("lunarlander", OBSERVATION)
    assert (refused.value.status, refused.value.code) == (401, "unauthorized")
