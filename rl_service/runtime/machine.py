"""What this machine offers: CPUs, GPUs, memory and ports, and why Ray may not start on it."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
import time
from pathlib import Path

from rl_service.common.errors import SettingsError
from rl_service.config.settings import ResourceSettings

_CGROUP_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
_MEMINFO = Path("/proc/meminfo")
QUIET_PORTS = range(32_000, 32_768)
"""Where port 0 takes one: below Linux's ephemeral ports, which any connection may take at any
moment, and above those of Ray's workers and of a server's replicas."""
LOOPBACK, ALL_INTERFACES = "127.0.0.1", "0.0.0.0"


def available_cpus() -> int:
    """CPUs that this process may use: its affinity, and the quota of its container if lower."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cpus or 1, _cgroup_cpus() or cpus or 1))


def available_gpus() -> int:
    """CUDA devices that torch sees."""
    import torch  # takes seconds, and only runs that want a GPU need it

    return torch.cuda.device_count()


def missing_cpus(
    resources: ResourceSettings, cpus: float, *, there: str, remedy: str
) -> str | None:
    """Why learners and rollout workers do not fit, in one line; None if they do.

    Args:
        resources: those asked for. The first learner takes no CPU of Ray's.
        cpus: how many CPUs there are.
        there: says where they are and how many.
        remedy: what to do instead of asking for fewer.
    """
    learners = resources.num_learners - 1
    if learners > cpus:
        return (
            f"resources.num_learners={resources.num_learners} needs {learners} CPUs, one for each "
            f"but the first, and {there}; use at most {int(cpus) + 1} "
            f"(resources.num_learners={int(cpus) + 1}) or {remedy}"
        )
    workers, each = resources.num_workers_to_begin_with, resources.num_cpus_per_env_runner
    if workers * each + learners <= cpus:
        return None
    fitting = int((cpus - learners) / each)
    key = "min_env_runners" if resources.is_elastic else "num_env_runners"
    taken = f", less {learners} for resources.num_learners={resources.num_learners}"
    return (
        f"resources.{key}={workers} with {each:g} CPU each need {workers * each:g} "
        f"CPUs, and {there}{taken if learners else ''}; use at most {fitting} "
        f"(resources.{key}={fitting}) or {remedy}"
    )


def available_memory_bytes() -> int | None:
    """Memory that new processes can take; None if the system does not say."""
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    kilobytes = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return int(kilobytes) * 1024 if kilobytes else None


def _cgroup_cpus() -> int | None:
    try:
        quota, period = _CGROUP_CPU_MAX.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, int(quota) // int(period))


def was_too_slow(said: str) -> bool:
    """Whether Ray gave up a node because it took too long, from Ray's message."""
    return "node timed out during startup" in said


def ray_remedy(problem: str) -> str:
    """The remedy for Ray's message when it does not start."""
    folder = Path.home() / ".ray"
    if str(folder) in problem:
        return f"Ray keeps a token there: make {folder} writable, or set HOME to a folder that is"
    return "free memory, CPUs and room in /tmp, and try again"


def usable_port(flag: str, port: int, host: str, patience_s: float = 0.0) -> int:
    """The port, or a free one for 0.

    Args:
        flag: the flag that gave the port.
        port: 0 takes a free one.
        host: address to bind to.
        patience_s: how long to wait for a port that is taken.

    Raises:
        SettingsError: if the port is taken, or the host is not an address of this machine.
    """
    if port == 0:
        for candidate in random.sample(QUIET_PORTS, 50):
            with contextlib.suppress(SettingsError):
                return usable_port(flag, candidate, host)
    deadline = time.monotonic() + patience_s
    while True:
        try:
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
                return int(probe.getsockname()[1])
        except OSError as error:
            if error.errno == errno.EADDRINUSE and time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            raise SettingsError(
                f"{flag} {port} cannot be used: {(error.strerror or str(error)).lower()}; give "
                f"another port, or 0 for any free one"
            ) from error
