"""The machine that was measured, and how busy it was."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    *("torch", "ray", "gymnasium", "mujoco", "transformers", "numpy"),
    *("stable-baselines3", "sbx-rl", "jax", "envpool"),
)


def describe() -> dict[str, Any]:
    """Processor, cores, load and versions of what decides the speed."""
    return {
        "processor": _processor(),
        "cores": num_cores(),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
    }


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def sentence(machine: dict[str, Any]) -> str:
    """One line for a reader; `gpu` is named where a benchmark has added it."""
    packages = ", ".join(f"{name} {found}" for name, found in machine["packages"].items())
    gpu = f"{machine['gpu']}; " if "gpu" in machine else ""
    return (
        f"{gpu}{machine['cores']} cores of {machine['processor']}, "
        f"load {machine['load_average']:.1f} at the start; Python {machine['python']}, {packages}"
    )


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
