"""Where an experiment lies: a folder, or a URI of fsspec, which all nodes must reach."""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from rl_service.common.errors import OutputError, SettingsError, TuningError
from rl_service.common.files import output_errors
from rl_service.common.text import one_line

PLAN_FILE = "tuning.yaml"
LOG_FILE = "log.txt"
DEFAULT_STORAGE = "runs"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExperimentStorage:
    """The folder of one experiment."""

    parent: str
    """An absolute folder, or a URI."""
    name: str

    @classmethod
    def create(cls, storage: str, name: str) -> ExperimentStorage:
        """Makes the folder of a new experiment.

        Raises:
            OutputError: if it cannot be written.
        """
        experiment = cls(_parent(storage), name)
        with experiment._reporting("written"):
            experiment._filesystem.makedirs(experiment._path, exist_ok=False)
            probe = f"{experiment._path}/.probe"
            experiment._filesystem.pipe_file(probe, b"1")
            experiment._filesystem.rm_file(probe)
        return experiment

    @classmethod
    def open(cls, experiment: str) -> ExperimentStorage:
        """Finds an experiment.

        Args:
            experiment: its folder or URI, or its name under `./runs`.

        Raises:
            TuningError: if there is none.
        """
        plain = experiment.rstrip("/")
        candidates = [plain] if "://" in plain else [plain, f"{DEFAULT_STORAGE}/{plain}"]
        for candidate in candidates:
            parent, _, name = candidate.rpartition("/")
            found = cls(_parent(parent or "."), name)
            with found._reporting("read"):
                if name and found._filesystem.exists(f"{found._path}/{PLAN_FILE}"):
                    return found
        raise TuningError(
            f"no tuning experiment '{experiment}': no {PLAN_FILE} in "
            f"{' or '.join(candidates)}; give its folder or URI"
        )

    def __str__(self) -> str:
        return f"{self.parent}/{self.name}"

    @property
    def local_path(self) -> Path | None:
        """The folder; None if it lies elsewhere."""
        return Path(self._path) if self.is_local else None

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine, which other nodes may or may not share."""
        return isinstance(self._filesystem, LocalFileSystem)

    def tune_arguments(self) -> dict[str, Any]:
        """What `tune.run` needs to know of it."""
        parent = self._path.rpartition("/")[0]
        if self.is_local:
            return {"name": self.name, "storage_path": parent}
        import pyarrow.fs

        handler = pyarrow.fs.FSSpecHandler(self._filesystem)
        filesystem = pyarrow.fs.PyFileSystem(handler)
        return {"name": self.name, "storage_path": parent, "storage_filesystem": filesystem}

    def write(self, name: str, content: str | bytes) -> None:
        """Writes a small file, whole or not at all.

        Raises:
            OutputError: if it cannot be written.
        """
        data = content.encode() if isinstance(content, str) else content
        path = f"{self._path}/{name}"
        with self._reporting("written"):
            self._filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
            if self.local_path is None:
                self._filesystem.pipe_file(path, data)
                return
            staged = f"{path}.new"
            self._filesystem.pipe_file(staged, data)
            os.replace(staged, path)

    def read(self, name: str) -> str:
        """Reads a small text file; as `read_bytes`."""
        return self.read_bytes(name).decode()

    def read_bytes(self, name: str) -> bytes:
        """Reads a small file.

        Raises:
            OutputError: if it cannot be read.
        """
        with self._reporting("read"):
            return bytes(self._filesystem.cat_file(f"{self._path}/{name}"))

    def names(self, pattern: str) -> list[str]:
        """Names of the files that match a shell pattern, which may begin with a plain folder."""
        folder, _, pattern = f"{self._path}/{pattern}".rpartition("/")
        with self._reporting("read"):
            try:
                # No glob, which would read the folder's own name as a pattern.
                found = self._filesystem.ls(folder, detail=False)
            except FileNotFoundError:
                return []
        names = [str(path).rstrip("/").rpartition("/")[2] for path in found]
        return sorted(fnmatch.filter(names, pattern))

    def put_folder(self, folder: Path, name: str = "") -> None:
        """Copies a local folder with all that is in it into the experiment, over what is there.

        Raises:
            OutputError: if it cannot be written.
        """
        with self._reporting("written"):
            for root, _, files in os.walk(folder):
                below = Path(name, Path(root).relative_to(folder))
                there = "/".join([self._path, *below.parts])
                self._filesystem.makedirs(there, exist_ok=True)
                for file in files:
                    self._filesystem.put_file(f"{root}/{file}", f"{there}/{file}")

    def remove_file(self, name: str) -> None:
        """Takes a file away.

        Raises:
            OutputError: if it cannot be removed.
        """
        with self._reporting("written"):
            self._filesystem.rm_file(f"{self._path}/{name}")

    def remove(self) -> None:
        """Takes the whole folder away."""
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.rm(self._path, recursive=True)

    @contextlib.contextmanager
    def working_folder(self, *continued: str) -> Iterator[Path]:
        """A local folder of the experiment's name: its own, or one whose files it gets at the end.

        Args:
            continued: names of files that are written on, if they are there already.
        """
        if self.local_path is not None:
            yield self.local_path
            return
        with tempfile.TemporaryDirectory(
            prefix="rl-service-tuning-", ignore_cleanup_errors=True
        ) as parent:
            folder = Path(parent, self.name)
            folder.mkdir()
            for name in continued:
                if self.names(name):
                    (folder / name).write_bytes(self.read_bytes(name))
            try:
                yield folder
            finally:
                self._keep(folder)

    def _keep(self, folder: Path) -> None:
        """Copies what is worth less than the experiment; one that was removed stays away."""
        try:
            if self.names(PLAN_FILE):
                self.put_folder(folder)
        except OutputError as error:
            logger.warning("not kept: %s (%s)", ", ".join(sorted(os.listdir(folder))), error)

    @cached_property
    def _located(self) -> tuple[fsspec.AbstractFileSystem, str]:
        try:
            filesystem, path = url_to_fs(str(self))
        except (ValueError, ImportError) as error:
            raise SettingsError(
                f"--storage {self.parent}: {one_line(error)}; give a folder or a URI whose "
                f"protocol fsspec knows here, such as s3://bucket/folder with s3fs installed"
            ) from error
        return filesystem, path.rstrip("/")

    @property
    def _filesystem(self) -> fsspec.AbstractFileSystem:
        return self._located[0]

    @property
    def _path(self) -> str:
        return self._located[1]

    @contextlib.contextmanager
    def _reporting(self, done: str) -> Iterator[None]:
        if self.is_local:
            with output_errors(Path(self._path), "give another folder with --storage"):
                yield
            return
        try:
            yield
        except Exception as error:  # of any object store's library
            raise OutputError(
                f"{self} cannot be {done}: {one_line(error)}; see that it exists and that the "
                f"credentials here allow it"
            ) from error


def _parent(storage: str) -> str:
    return storage.rstrip("/") if "://" in storage else str(Path(storage).absolute())
