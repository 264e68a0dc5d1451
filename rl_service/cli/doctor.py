"""`rl-service doctor`."""

from __future__ import annotations

import netrc
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer
from packaging.requirements import Requirement

from rl_service.config.settings import EnvSettings
from rl_service.runtime.machine import (
    available_cpus,
    available_gpus,
    available_memory_bytes,
    ray_remedy,
)

_DISTRIBUTION = "rl-service"
_GIB = 2**30
_ENOUGH_MEMORY_BYTES = 2 * _GIB
_ENOUGH_SHARED_MEMORY_BYTES = _GIB
_TIME_LIMIT_S = 90.0
_TIME_TO_CLOSE_S = 15.0
_DRAW = """
import sys
from rl_service.config.settings import EnvSettings
from rl_service.common.errors import EnvError
from rl_service.training.video import make_drawable_env
try:
    make_drawable_env(EnvSettings(id=sys.argv[1])).close()
except EnvError as error:
    sys.exit(str(error))
"""
# address="local": a cluster of our own even where RAY_ADDRESS points to another one.
_START_RAY = """
import sys
import ray
from rl_service.runtime.ray_session import protect_token
protect_token()
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False,
         object_store_memory=100 * 2**20, _temp_dir=sys.argv[1])
ray.get(ray.remote(lambda: 1).remote())
ray.shutdown()
"""


class Finding(NamedTuple):
    """One thing that was looked at."""

    subject: str
    status: Literal["ok", "note", "problem"]
    """`note`: runs work, but something optional is missing or slower."""
    detail: str
    remedy: str = ""
    """How to fix it; empty if there is nothing to fix."""


def doctor(
    output_dir: Annotated[
        Path, typer.Option("--output-dir", "-o", help="Folder that runs would write to.")
    ] = Path(),
) -> None:
    """Say what is installed, what is missing, and how to fix it; status 1 if runs cannot work."""
    from rich.console import Console
    from rich.text import Text

    colours = {"ok": "green", "note": "yellow", "problem": "bold red"}
    console = Console()
    num_problems = 0
    for finding in _findings(output_dir):
        num_problems += finding.status == "problem"
        line = Text.assemble(
            (f"{finding.status:8}", colours[finding.status]), f"{finding.subject:21}"
        )
        console.print(line.append(finding.detail), soft_wrap=True)
        if finding.remedy:
            console.print(Text(f"{'':29}→ {finding.remedy}"), soft_wrap=True)
    if num_problems:
        console.print(f"{num_problems} problem(s): do what → says")
        raise typer.Exit(1)
    console.print("runs work here")


def _findings(output_dir: Path) -> Iterator[Finding]:
    """All that a run needs, each as soon as it is known; takes a quarter of a minute."""
    checks: list[Callable[[], Finding]] = [
        _python,
        _packages,
        lambda: Finding("processors", "ok", f"{available_cpus()} CPUs, {available_gpus()} GPUs"),
        _compiler,
        _memory,
        _shared_memory,
        lambda: _output(output_dir),
        lambda: _env("Box2D environments", "LunarLander-v3", "pip install box2d==2.3.10"),
        lambda: _env("MuJoCo environments", "HalfCheetah-v4", "pip install 'gymnasium[mujoco]'"),
        lambda: _renderer("video of Box2D", "LunarLander-v3"),
        lambda: _renderer("video of MuJoCo", "HalfCheetah-v4"),
        _ray,
        _wandb,
    ]
    for check in checks:
        yield check()


def _python() -> Finding:
    version = platform.python_version()
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return Finding("Python", "ok", version)
    return Finding("Python", "problem", version, "use Python 3.11, 3.12 or 3.13")


def _packages() -> Finding:
    try:
        requirements = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return Finding("packages", "note", f"{_DISTRIBUTION} is not installed", "run `make venv`")
    needed = [Requirement(text) for text in requirements]
    needed = [need for need in needed if need.marker is None or need.marker.evaluate()]
    wrong = [problem for need in needed if (problem := _package_problem(need))]
    if wrong:
        return Finding("packages", "problem", "; ".join(wrong), "run `make venv`")
    return Finding("packages", "ok", f"all {len(needed)} as pinned")


def _package_problem(need: Requirement) -> str | None:
    try:
        installed = metadata.version(need.name)
    except metadata.PackageNotFoundError:
        return f"{need.name} is missing"
    if need.specifier.contains(installed, prereleases=True):
        return None
    return f"{need.name} {installed} is not {need.specifier}"


def _compiler() -> Finding:
    from rl_service.algorithms.machine_code import build

    compiled, reason = build()
    if compiled is None:
        return Finding("C compiler", "note", reason, "small nets learn faster: apt-get install gcc")
    return Finding("C compiler", "ok", "small nets learn in machine code")


def _memory() -> Finding:
    available = available_memory_bytes()
    if available is None:
        return Finding("memory", "note", "unknown on this system")
    detail = f"{available / _GIB:.1f} GiB available"
    if available >= _ENOUGH_MEMORY_BYTES:
        return Finding("memory", "ok", detail)
    return Finding("memory", "problem", detail, "a run with 2 workers takes about 2 GiB: free some")


def _shared_memory() -> Finding:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Finding("shared memory", "note", "/dev/shm is missing; Ray uses /tmp, slower")
    free = shutil.disk_usage(folder).free
    detail = f"{free / _GIB:.1f} GiB free in /dev/shm"
    if free >= _ENOUGH_SHARED_MEMORY_BYTES:
        return Finding("shared memory", "ok", detail)
    remedy = "Ray then uses /tmp, slower; in a container give --shm-size=2g"
    return Finding("shared memory", "note", detail, remedy)


def _output(folder: Path) -> Finding:
    from rl_service.training.checks import check_output  # imports gymnasium

    problems = check_output(folder)
    if problems:
        return Finding("output folder", "problem", problems[0], "give another one with -o")
    return Finding("output folder", "ok", f"{folder.absolute()} can be written")


def _env(subject: str, env_id: str, remedy: str) -> Finding:
    from rl_service.training.checks import check_env

    problems = check_env(EnvSettings(id=env_id))
    if problems:
        return Finding(subject, "problem", problems[0], remedy)
    return Finding(subject, "ok", f"{env_id} can be made")


def _renderer(subject: str, env_id: str) -> Finding:
    problem = _run(_DRAW, env_id)
    if problem is None:
        return Finding(subject, "ok", f"{env_id} can be drawn")
    remedy = "only `evaluate --video` needs it: apt-get install libegl1 libgl1-mesa-dri"
    return Finding(subject, "note", problem, remedy)


def _ray() -> Finding:
    # Ray puts sockets there, and their paths have a limit of about 100 characters.
    with tempfile.TemporaryDirectory(prefix="rls-", ignore_cleanup_errors=True) as folder:
        problem = _run(_START_RAY, folder)
    if problem is None:
        return Finding("Ray", "ok", "a local cluster starts and ends")
    return Finding("Ray", "problem", problem, ray_remedy(problem))


def _wandb() -> Finding:
    if os.environ.get("WANDB_API_KEY") or _wandb_in_netrc():
        return Finding("Weights & Biases", "ok", "an API key is set")
    remedy = "set WANDB_API_KEY, or upload later with `wandb sync`"
    return Finding("Weights & Biases", "note", "no API key: runs are kept offline", remedy)


def _wandb_in_netrc() -> bool:
    try:
        return netrc.netrc().authenticators("api.wandb.ai") is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _run(program: str, argument: str) -> str | None:
    """Runs a Python program in a process of its own; returns what went wrong, or None."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, argument],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        _, err = process.communicate(timeout=_TIME_LIMIT_S)
    except subprocess.TimeoutExpired:
        _end(process)
        return f"no answer within {_TIME_LIMIT_S:.0f} s"
    except BaseException:  # Ctrl-C reaches only us, since the program has its own session
        _end(process)
        raise
    if process.returncode == 0:
        return None
    last = err.strip().splitlines()[-1:] or [f"it ended with status {process.returncode}"]
    return last[0]


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a program and its children: politely, since Ray then ends its own, then for sure."""
    process.terminate()
    try:
        process.communicate(timeout=_TIME_TO_CLOSE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
