"""Where a run happened: versions, source state and hardware, for the reader of its results."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import rl_service
from rl_service.config.settings import ResourceSettings

_PACKAGES = (
    "ray",
    "torch",
    "gymnasium",
    "numpy",
    "transformers",
    "safetensors",
    "box2d",
    "mujoco",
    "wandb",
)
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_COMMAND_TIMEOUT_S = 10.0


def describe_environment(command: list[str], resources: ResourceSettings) -> dict[str, Any]:
    """What `environment.json` holds; starts neither Ray nor CUDA.

    Args:
        command: the command line that started the run.
        resources: its thread counts are listed beside the environment's.
    """
    return {
        "command": command,
        "rl_service": rl_service.__version__,
        "python": platform.python_version(),
        "packages": {name: _installed(name) for name in _PACKAGES},
        "git": _git_state(Path(rl_service.__file__).parent),
        "hardware": {
            "platform": platform.platform(),
            "cpu": _cpu_model(),
            "num_cpus": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "gpus": _gpus(),
        },
        "threads": {
            "learner": resources.learner_threads,
            "worker": resources.worker_threads,
            **{name: os.environ.get(name) for name in _THREAD_VARIABLES},
        },
    }


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_state(folder: Path) -> dict[str, Any] | None:
    """Commit and whether tracked files differ from it; None outside a checkout of this package."""
    # An installed package may lie inside another project's repository, which does not track it.
    if _output(["git", "-C", str(folder), "ls-files", "--error-unmatch", "__init__.py"]) is None:
        return None
    changes = _output(["git", "-C", str(folder), "status", "--porcelain", "-uno", ":/"])
    commit = _output(["git", "-C", str(folder), "rev-parse", "HEAD"])
    return {"commit": commit, "dirty": bool(changes)}


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpus() -> list[str]:
    """Names of the GPUs, asked of the driver: torch would reserve memory on each."""
    if shutil.which("nvidia-smi") is None:
        return []
    names = _output(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    return names.splitlines() if names else []


def _output(command: list[str]) -> str | None:
    """Standard output of a command, or None if it fails, hangs or does not exist."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
