"""Our service and a bare one, each started by a child and asked from outside."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
START_S = 240.0


class _Process:
    """A server of its own process group, gone when the subject closes."""

    def __init__(self, arguments: list[str]) -> None:
        self._output = Path(tempfile.mkdtemp(prefix="rlbs")) / "output.txt"
        with self._output.open("w") as file:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                start_new_session=True,
            )

    def wait_for(self, pattern: str) -> str:
        deadline = time.monotonic() + START_S
        while True:
            text = self._output.read_text()
            found = re.search(pattern, text, re.MULTILINE)
            if found:
                return found[1]
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start: {text[-2000:]}")
            time.sleep(0.1)

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class RLService(_Process):
    """`rl-service serve` of policies, as a user starts it."""

    def __init__(self, arguments: list[str]) -> None:
        super().__init__(["-m", "rl_service.cli", "serve", *arguments, "--port", "0"])

    def address(self) -> tuple[str, int]:
        host, port = self.wait_for(r"^serving .* at http://(\S+)").rsplit(":", 1)
        return host, int(port)

    def kill_a_replica(self) -> None:
        from rl_service.cluster.nodes import command_line
        from tests.support.services import descendants

        pids = [
            pid for pid in descendants(self._process.pid) if "ServeReplica" in command_line(pid)
        ]
        os.kill(pids[0], signal.SIGKILL)


class BareFastAPI(_Process):
    """One uvicorn process with a FastAPI route, a pydantic body and the same net."""

    def __init__(self, bundle: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        super().__init__(["-m", "tests.benchmarks.subjects.services", bundle, str(self._port)])

    def address(self) -> tuple[str, int]:
        self.wait_for("(Uvicorn running)")
        return "127.0.0.1", self._port


def main(bundle: str, port: int) -> None:
    """The bare server."""
    import torch
    import uvicorn
    from fastapi import FastAPI
    from pydantic import create_model

    from rl_service.policies import load_bundle

    torch.set_num_threads(1)
    policy = load_bundle(bundle)
    body: Any = create_model(
        "Body",
        observation=(list[float] | None, None),
        observations=(list[list[float]] | None, None),
        deterministic=(bool, True),
    )
    app = FastAPI()

    async def act(request: body) -> dict[str, Any]:
        rows = [request.observation] if request.observations is None else request.observations
        actions = policy.act(rows, deterministic=request.deterministic)
        return {
            "actions": actions.env_actions.tolist(),
            "log_prob": actions.log_prob.tolist(),
        }

    act.__annotations__["request"] = body
    app.post("/act")(act)
    uvicorn.run(app, port=port, access_log=False)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
