"""Ray for the length of a run: an existing cluster, or a local one of the run's own.

What only Ray's private modules offer is imported here and nowhere else.
"""

from __future__ import annotations

import importlib
import json
import os
import secrets
import signal
import socket
import stat
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray._private.node import Node  # takes the signals and the port file of a Ray of our own
from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR
from ray._private.state import actors, available_resources_per_node
from ray._private.state import state as cluster_state
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled
from ray.actor import ActorHandle
from ray.exceptions import RayError

from custom_models.text import brief
from rl_service.common.errors import ResourceError
from rl_service.config.settings import ResourceSettings
from rl_service.runtime.forkserver import TRAINING_MODULES, py_executable
from rl_service.runtime.machine import missing_cpus, ray_remedy, was_too_slow

_ANSWER_TIMEOUT_S = 10.0
_WITH_OWN_PYTHON = {"conda", "container", "image_uri", "pip", "py_executable", "uv"}
"""Keys of the runtime environment of a job whose workers run in a Python of its own."""


@contextmanager
def ray_session(
    resources: ResourceSettings,
    *,
    actor_module: str = "custom_models.nets",
    num_gpus: int | None = None,
    load: Sequence[str] = (),
) -> Iterator[None]:
    """Connects to the cluster in `RAY_ADDRESS`, or starts Ray in this machine's processes.

    A Ray that is already connected (a Tune trial, a job, a test) is used and left alone.

    Args:
        resources: of the training.
        actor_module: that its workers import, besides what all trainings need.
        num_gpus: GPUs of a Ray that is started here; None: as many as the training takes.
        load: modules that are needed next; they are imported while Ray starts.

    Raises:
        ResourceError: if no Ray answers or starts, or the cluster has too few CPUs.
    """
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray starts workers at niceness 15: beside any other busy process they would starve, and the
    # learner waits for the slowest of them.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Ray's own warning about zero GPUs changes nothing here and would fill the log.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Workers that Ray starts in advance are not forked, so no actor of ours would get one.
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    address = os.environ.get("RAY_ADDRESS")
    runtime_env = _runtime_env(actor_module)
    try:
        with _loading(load), own_sigterm():
            if address:
                _connect(address, runtime_env)
                _check_cpus(resources, address)
            else:
                gpus = resources.num_gpus if num_gpus is None else num_gpus
                start_ray(num_gpus=gpus, include_dashboard=False, runtime_env=runtime_env)
            if runtime_env and (resources.num_env_runners or resources.num_learners > 1):
                # Its worker brings the fork server, which then loads while this process does.
                ray.remote(num_cpus=0)(_nothing).remote()
        yield
    finally:
        ray.shutdown()


@contextmanager
def _loading(modules: Sequence[str]) -> Iterator[None]:
    """Imports modules in another thread during the block; errors appear when they are used."""

    def load() -> None:
        with suppress(Exception):
            for module in modules:
                importlib.import_module(module)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _connect(address: str, runtime_env: dict[str, str]) -> None:
    remedy = "start that cluster, or unset RAY_ADDRESS to train on this machine"
    if os.environ.get("RAY_AUTH_MODE") != "token":  # Ray itself would not say so
        remedy += "; if it asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH"
    try:
        _knock(address)
        ray.init(runtime_env=runtime_env)
    except Exception as error:  # Ray raises many types; all mean the same here
        raise ResourceError(
            f"no Ray cluster answers at RAY_ADDRESS={address} ({brief(error, 200)}); {remedy}"
        ) from error


def _runtime_env(actor_module: str) -> dict[str, str]:
    """Runtime environment of all workers that this process starts, directly or not."""
    job = json.loads(os.environ.get(RAY_JOB_CONFIG_JSON_ENV_VAR) or "{}")
    if _WITH_OWN_PYTHON & (job.get("runtime_env") or {}).keys():
        return {}
    return {"py_executable": py_executable((*TRAINING_MODULES, actor_module))}


def _nothing() -> None:
    pass


def _knock(address: str) -> None:
    """Raises OSError if nobody listens there; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_TIMEOUT_S).close()


def start_ray(**arguments: Any) -> None:
    """Starts a local Ray with `ray.init`, a second time if its node was too slow to start.

    Args:
        arguments: of `ray.init`, besides the address.

    Raises:
        ResourceError: if it does not start.
    """
    protect_token()
    os.environ[OWN_RAY] = "1"
    try:
        try:
            ray.init(address="local", **arguments)
        except Exception as error:
            if not was_too_slow(str(error)):
                raise
            _end_half_started(error)
            ray.init(address="local", **arguments)
    except Exception as error:  # time-outs of its processes, of many types
        raise ResourceError(
            f"Ray did not start on this machine ({brief(error, 200)}); "
            f"{ray_remedy(str(error))}, or ask rl-service doctor"
        ) from error


def protect_token() -> None:
    """Makes Ray's token readable by its owner only: whoever reads it can run code as that user.

    Ray itself writes a new one that all can read. Call this before Ray starts.

    Raises:
        ResourceError: if the folder of the token cannot be written.
    """
    given = any(os.environ.get(f"RAY_AUTH_TOKEN{suffix}") for suffix in ("", "_PATH"))
    if given or os.environ.get("RAY_AUTH_MODE", "token") != "token":
        return
    path = Path.home() / ".ray" / "auth_token"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _close_to_others(path.parent)
        with suppress(FileExistsError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32))
        _close_to_others(path)
    except OSError as error:
        raise ResourceError(
            f"Ray's token cannot be kept ({(error.strerror or str(error)).lower()}: {path}); "
            f"{ray_remedy(str(path))}"
        ) from error


def _close_to_others(path: Path) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        path.chmod(mode & 0o700)


def _end_half_started(error: Exception) -> None:
    """Ends the processes of a node that did not start; Ray leaves them until we exit.

    Only the error refers to that node.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        node = frame.f_locals.get("self")
        if isinstance(node, Node):
            node.kill_all_processes(check_alive=False, allow_graceful=True)
            return


def _check_cpus(resources: ResourceSettings, address: str) -> None:
    """Ray would wait for missing CPUs forever."""
    coming = coming_cpus()
    if coming is None and resources.is_elastic:
        return  # its autoscaler may bring nodes
    cpus = cpus_now() + (coming or 0.0)
    there = f"the cluster at RAY_ADDRESS={address} has {cpus:g}"
    problem = missing_cpus(resources, cpus, there=there, remedy="add nodes")
    if problem:
        raise ResourceError(problem)


@contextmanager
def own_sigterm() -> Iterator[None]:
    """Undoes what `ray.init` does to SIGTERM: it would end the process with Ray's own status."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as error:
        raise KeyboardInterrupt from error
    finally:
        signal.signal(signal.SIGTERM, before)


OWN_RAY = "RL_SERVICE_OWN_RAY"
"""Variable of the processes of a Ray that a command of ours has started for itself."""

_LIFETIME_S = 5.0  # of an answer: asking takes some milliseconds
_MEMORY_S = 60.0  # a process takes up to a minute to start on a cold or busy node


def cpus_now() -> float:
    """Logical CPUs of the current nodes."""
    return float(ray.cluster_resources().get("CPU", 0.0))


def coming_cpus() -> float | None:
    """CPUs of the nodes that the cluster's autoscaler may still bring; None if it does not say.

    A local Ray gets no more nodes. On another cluster only the autoscaler knows; that of
    `rl-service cluster autoscale` says so, others do not.
    """
    most = cluster_state.get_max_resources_from_cluster_config()  # there is no public call
    if most is not None:
        return max(0.0, float(most.get("CPU", 0.0)) - cpus_now())
    return None if _is_foreign() else 0.0


def _is_foreign() -> bool:
    """Whether somebody else started this Ray. Its own processes have its node's variables."""
    is_driver = ray.get_runtime_context().get_actor_id() is None
    return bool(os.environ.get("RAY_ADDRESS")) if is_driver else OWN_RAY not in os.environ


class Capacity:
    """Room for a training's workers; the answer is a few seconds old at most.

    Args:
        cpus_per_worker: logical CPUs of each.
        count_held: workers that have their CPUs, or whose CPUs are kept for them.
    """

    def __init__(self, cpus_per_worker: float, count_held: Callable[[], int]) -> None:
        self._cpus_per_worker = cpus_per_worker
        self._count_held = count_held
        self._answers: list[tuple[float, int | None]] = []
        """When Ray was asked, and the answers."""

    def placeable(self) -> int | None:
        """Workers that there is room for, including present ones; None if no limit is known.

        The largest answer of the last minute: the CPUs of a worker that has just died, or whose
        process is being started, are for a while neither free nor known to be its own.
        """
        if self._cpus_per_worker == 0.0:
            return None
        now = time.monotonic()
        if not self._answers or now - self._answers[-1][0] > _LIFETIME_S:
            recent = [answer for answer in self._answers if now - answer[0] < _MEMORY_S]
            self._answers = [*recent, (now, self._ask())]
        known = [workers for _, workers in self._answers if workers is not None]
        return max(known) if self._answers[-1][1] is not None else None

    def _ask(self) -> int | None:
        coming = coming_cpus()
        if coming is None:
            return None
        # A worker needs a node that has all its CPUs.
        free = [node.get("CPU", 0.0) for node in available_resources_per_node().values()]
        return self._count_held() + sum(self._workers_on(cpus) for cpus in [*free, coming])

    def _workers_on(self, cpus: float) -> int:
        return int(cpus / self._cpus_per_worker + 1e-6)  # 0.3 / 0.1 is less than 3


def is_placed(actor: ActorHandle) -> bool:
    """Whether an actor has its CPUs and a process; it may still be starting there.

    Before, its node is the one that its request waits at. No public call asks the control store
    about a single actor.
    """
    try:
        found = actors(actor._actor_id.hex())
    except RayError:
        return False
    return bool(found.get("Address", {}).get("Port"))


def report_cluster_config(address: str, config: bytes) -> None:
    """Reports which nodes an autoscaler could add; Ray's own launcher alone has a public way."""
    GcsClient(address=address).report_cluster_config(config)


def ray_log_folder() -> Path:
    """Where this Ray's processes on this machine write; there is no public call."""
    return Path(ray._private.worker.global_worker.node.get_logs_dir_path())


def forget_first_job() -> None:
    """Lets a process register environments again after its first Ray job has ended."""
    from ray.tune.registry import _global_registry  # slow to import

    _global_registry._prefix = None


def serve_client() -> Any:
    """Serve's client, which can be asked more than `ray.serve` offers; None if Serve is down."""
    from ray.serve.context import _get_global_client  # takes seconds to import

    return _get_global_client(raise_if_no_controller_running=False)
