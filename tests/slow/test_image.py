"""The steps of docker/Dockerfile that need no container engine, executed as they are written.

The packages are those of the present environment, which a new one inherits; nothing is downloaded.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.dockerfile import arguments, last, steps

ROOT = Path(__file__).parents[2]
TOKEN = "token-of-this-test-0123456789"
START_S = 240.0


@pytest.fixture(scope="module")
def image() -> Iterator[Path]:
    """A folder with the environment that the RUN steps make, and `data` to work in."""
    folder = Path(tempfile.mkdtemp(prefix="rl-", dir="/tmp"))
    try:
        folder.chmod(0o755)
        _inheriting_environment(folder / "env")
        _copy_context(folder / "build")
        for script in install_scripts():
            run(folder, script.replace("/tmp/requirements.txt", f"{folder}/requirements.txt"))
        shutil.rmtree(folder / "build")
        (folder / "data").mkdir()
        if user := unprivileged():
            os.chown(folder / "data", user["user"], user["group"])
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _inheriting_environment(folder: Path) -> None:
    """Sees the packages of this one, except those that are installed in development mode."""
    venv.create(folder, with_pip=False, symlinks=True)
    [packages] = (folder / "lib").glob("python*/site-packages")
    here = [path for path in sys.path if path.endswith("-packages")]
    (packages / "inherited.pth").write_text("\n".join(here), encoding="utf-8")


def _copy_context(target: Path) -> None:
    """What .dockerignore lets through."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    target.mkdir()
    for name in [line[1:] for line in lines if line.startswith("!")]:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target / name)


def install_scripts() -> list[str]:
    """The RUN steps that install Python packages."""
    scripts = [step.script() for step in steps("serve") if step.instruction == "RUN"]
    return [script for script in scripts if "pip install" in script]


def environment(folder: Path) -> dict[str, str]:
    """Of a process in the image: nothing of the present one's Python."""
    kept = {name: os.environ[name] for name in ("LANG", "OMP_NUM_THREADS") if name in os.environ}
    return {
        **kept,
        **arguments(),
        "PATH": f"{folder}/env/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(folder / "data"),
        "PIP_NO_INDEX": "1",
        "RAY_worker_niceness": "0",
        "RL_SERVICE_TOKENS": f"test:{TOKEN}",
    }


def run(folder: Path, script: str) -> None:
    """The environment has no pip of its own: it uses the inherited one."""
    done = subprocess.run(
        ["sh", "-ec", f'pip() {{ python -m pip "$@"; }}\n{script}'],
        cwd=folder / "build",
        env=environment(folder),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def unprivileged() -> dict[str, Any]:
    """How subprocess becomes nobody, where it can and nobody may read this environment."""
    paths = [Path(sys.executable).resolve(), Path(sys.prefix).resolve()]
    readable = all(folder.stat().st_mode & 0o001 for path in paths for folder in path.parents)
    if os.geteuid() != 0 or not readable:
        return {}
    return {"user": 65534, "group": 65534, "extra_groups": []}


def entrypoint(target: str) -> list[str]:
    """Without the init process, which comes with the image."""
    words = last(target, "ENTRYPOINT").words()
    assert words[:2] == ["tini", "--"]
    return words[2:]


def test_the_install_steps_bring_the_package_with_its_data(image: Path) -> None:
    [installed] = (image / "env" / "lib").glob("python*/site-packages")
    assert (installed / "rl_service" / "zoo" / "lunarlander" / "policy.json").is_file()
    assert (installed / "tune_configs" / "quickstart.yaml").is_file()


def test_the_training_image_shows_its_commands(image: Path) -> None:
    done = subprocess.run(
        [*entrypoint("train"), *last("train", "CMD").words()],
        cwd=image / "data",
        env=environment(image),
        capture_output=True,
        text=True,
        check=True,
        **unprivileged(),
    )
    assert "serve" in done.stdout and "train" in done.stdout


def test_the_serving_image_refuses_to_be_open_to_everybody(image: Path) -> None:
    without = {k: v for k, v in environment(image).items() if k != "RL_SERVICE_TOKENS"}
    done = subprocess.run(
        [*entrypoint("serve"), *last("serve", "CMD").words()],
        cwd=image / "data",
        env=without,
        capture_output=True,
        text=True,
        **unprivileged(),
    )
    assert done.returncode == 2
    assert "needs tokens" in done.stderr


def test_the_serving_image_answers_its_health_check_as_nobody(image: Path) -> None:
    output = image / "output.txt"
    with output.open("w") as file:
        process = subprocess.Popen(
            # Another port than the image's: this machine may have a service there.
            [*entrypoint("serve"), *last("serve", "CMD").words(), "--port", "0"],
            cwd=image / "data",
            env=environment(image),
            stdout=file,
            stderr=subprocess.STDOUT,
            **unprivileged(),
        )
    try:
        port = _port(process, output)
        check = [
            word.replace(":8000/", f":{port}/") for word in last("serve", "HEALTHCHECK").words()
        ]
        assert check != last("serve", "HEALTHCHECK").words()
        healthy = subprocess.run(check, capture_output=True, text=True)
        assert healthy.returncode == 0, healthy.stderr
        # As a published port does, from another address.
        assert httpx.get(f"http://127.0.0.2:{port}/healthz", timeout=10.0).status_code == 200
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    assert subprocess.run(check, capture_output=True).returncode != 0


def _port(process: subprocess.Popen[bytes], output: Path) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"serving .* at http://[\d.]+:(\d+) ", output.read_text()):
            return found[1]
        time.sleep(0.1)
    raise AssertionError(output.read_text())
