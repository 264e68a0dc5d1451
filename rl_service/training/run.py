"""The folder of a run.

<output_dir>/runs/<experiment>/<run_id>/
    config.yaml          resolved settings
    environment.json     versions, source state, hardware
    progress.jsonl       one object per iteration
    log.txt              output of Ray and the libraries
    checkpoints/         training state, for `--resume`
<output_dir>/checkpoints/<model>/<env>/<hash>/    the best policy, as a bundle
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import platform
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import rl_service
from rl_service.common.errors import CheckpointError, SettingsError
from rl_service.common.files import as_folder_name, output_errors, write_atomic
from rl_service.config.load import dump_settings, load_settings
from rl_service.config.settings import ResourceSettings, Settings
from rl_service.training.checkpoints import CheckpointStore
from rl_service.training.progress_file import ProgressFile

RUNS_FOLDER = "runs"
_CONFIG = "config.yaml"

logger = logging.getLogger(__name__)
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


@dataclass(frozen=True)
class Run:
    """A run on disk; made by `create` or found by `open`."""

    path: Path
    """Absolute, so that the run survives a change of the current folder."""
    settings: Settings

    @classmethod
    def create(cls, settings: Settings, *, command: list[str]) -> Run:
        """Makes the folder of a new run.

        Args:
            settings: resolved settings; written to `config.yaml`.
            command: the command line, for `environment.json`.

        Raises:
            OutputError: if the folder cannot be written; nothing is left of it then.
        """
        parent = Path(settings.tracking.output_dir).resolve() / RUNS_FOLDER / _experiment(settings)
        path = parent / f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        environment = describe_environment(command, settings.resources)
        with output_errors(path):
            path.mkdir(parents=True)
        try:
            write_atomic(path / "environment.json", json.dumps(environment, indent=2) + "\n")
            write_atomic(path / _CONFIG, dump_settings(settings))
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        return cls(path, settings)

    @classmethod
    def open(cls, run: str | Path) -> Run:
        """Finds a run.

        Args:
            run: its folder, or its id under `./runs`.

        Raises:
            CheckpointError: if there is no such run, or its settings cannot be read.
        """
        path = _find(run)
        try:
            settings = load_settings(
                config=path / _CONFIG,
                model=None,
                algorithm=None,
                env=None,
                overrides=_as_before(path / _CONFIG),
            ).settings
        except SettingsError as error:
            raise CheckpointError(
                f"run {path} cannot be read: its {_CONFIG} is damaged or from another release "
                f"({error}); fix that file or start a new run"
            ) from error
        return cls(path, settings)

    def with_settings(self, settings: Settings) -> Run:
        """The run with changed settings, which are written to its `config.yaml`.

        Only some settings may change; see `rl_service.config.load`.

        Raises:
            OutputError: if the file cannot be written; the old one stays.
        """
        if settings == self.settings:
            return self
        write_atomic(self.path / _CONFIG, dump_settings(settings))
        return Run(self.path, settings)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps other processes from working on the run, at most until this process ends.

        Raises:
            CheckpointError: if another process is working on it.
        """
        descriptor = os.open(self.path, os.O_RDONLY)  # not inherited by Ray's processes
        try:
            _lock_or_refuse(descriptor, self.path)
            yield
        finally:
            os.close(descriptor)

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def log_path(self) -> Path:
        """Output of Ray and of the libraries."""
        return self.path / "log.txt"

    @cached_property
    def bundle_path(self) -> Path:
        """Folder of the run's best policy."""
        settings = self.settings
        name = Path(settings.model.short_name, as_folder_name(settings.env.id))
        folder = self.output_dir / "checkpoints" / name
        path = folder / hashlib.sha256(self.run_id.encode()).hexdigest()[:10]
        if path.exists():
            return path
        # Runs of earlier releases hashed their settings, too.
        written = f'"run_id": "{self.run_id}"'
        found = (s for s in folder.glob("*/policy.json") if written in s.read_text("utf-8"))
        return next((spec.parent for spec in found), path)

    @property
    def checkpoints(self) -> CheckpointStore:
        """Training states that `--resume` continues from."""
        return CheckpointStore(self.path / "checkpoints", self.settings.tracking.keep_checkpoints)

    def append_progress(self, row: Mapping[str, Any]) -> None:
        """Adds an iteration's row to `progress.jsonl`; see `ProgressFile.append`."""
        self._progress.append(row)

    def complete_progress(self, row: Mapping[str, Any]) -> None:
        """Adds keys to the newest row of `progress.jsonl`; see `ProgressFile.complete`."""
        self._progress.complete(row)

    def read_progress(self) -> list[dict[str, Any]]:
        """Rows of `progress.jsonl`, oldest first."""
        return self._progress.read()

    def rewind_progress(self, iteration: int) -> None:
        """Drops the rows after the iteration that the run resumes from."""
        self._progress.rewind(iteration)

    @property
    def _progress(self) -> ProgressFile:
        return ProgressFile(self.path / "progress.jsonl")

    @property
    def output_dir(self) -> Path:
        """The run's output folder; a relative `output_dir` depends on where it was started."""
        if self.path.parents[1].name == RUNS_FOLDER:
            return self.path.parents[2]
        return Path(self.settings.tracking.output_dir).resolve()


def _lock_or_refuse(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise CheckpointError(
            f"run {path} is in progress in another process; wait for it or stop it (Ctrl-C)"
        ) from error
    except OSError:  # a file system without locks, as some network ones are
        logger.warning("run %s cannot be locked here", path)


def _experiment(settings: Settings) -> str:
    default = f"{settings.model.short_name}_{settings.algorithm.short_name}_{settings.env.id}"
    return as_folder_name(settings.tracking.experiment or default)


def _as_before(config: Path) -> list[str]:
    """What a run of an earlier release goes on with, where its settings say nothing."""
    try:
        text = config.read_text(encoding="utf-8", errors="replace")
    except OSError:  # reported where the settings are read
        return []
    return [] if "action_masks:" in text else ["env.action_masks=false"]


def _find(run: str | Path) -> Path:
    path = Path(run)
    if (path / _CONFIG).is_file():
        return path.resolve()
    if path.is_dir():
        raise CheckpointError(f"{path} is not a run: it has no {_CONFIG}; give one under runs/")
    known = sorted(Path(RUNS_FOLDER).glob(f"*/*/{_CONFIG}"), key=lambda p: p.parent.name)
    for config in known:
        if config.parent.name == str(run):
            return config.parent.resolve()
    newest = f"the newest is {known[-1].parent}" if known else "there are no runs yet"
    raise CheckpointError(f"no run '{run}': neither a folder nor an id under ./runs; {newest}")


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
    """Names of the GPUs, from the driver: torch would reserve memory on each."""
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
