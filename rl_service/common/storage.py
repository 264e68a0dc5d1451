"""Small files and folders below a root: a folder here, or whatever fsspec reaches elsewhere."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

from custom_models.text import one_line
from rl_service.common.errors import RLServiceError
from rl_service.common.files import (
    WRITING,
    reason_of,
    swap_in,
    sync_folder,
    sync_to_disk,
    written_beside,
)

Failure = Callable[[str, str], RLServiceError]
"""Makes an error out of what failed (`reach`, `read` or `write`) and why; it names the remedy."""

_COPYING = ".copying-"
"""Beginning of the names of folders that are not whole yet."""
_ABANDONED_S = 24 * 3600.0
"""Age at which half a file or folder can only be what a killed process left."""
_create_lock = threading.Lock()  # `memory://` looks first and writes then, and lives in one process


def open_storage(root: str, failure: Failure) -> Storage:
    """The storage at a root, which need not exist yet.

    Args:
        root: a folder, `~` allowed, or a URI that fsspec knows (`s3://…`, `memory://…`).
        failure: makes the errors that this function and the storage raise.
    """
    if "://" not in root:
        return LocalStorage(Path(root).expanduser().absolute(), failure)
    try:
        file_system, path = fsspec.url_to_fs(root)
    except (ImportError, ValueError) as error:
        raise failure("reach", one_line(error)) from error
    if isinstance(file_system, LocalFileSystem):
        return LocalStorage(Path(path), failure)
    return RemoteStorage(root, file_system, path.rstrip("/"), failure)


class Storage(ABC):
    """Files below a root; paths are relative to it, with `/` between their parts.

    Args:
        root: an absolute folder, or a URI.
        failure: makes the errors.
    """

    local_path: Path | None = None
    """The root if it is a folder of this machine, which other machines may or may not share."""

    def __init__(self, root: str, failure: Failure) -> None:
        self.root = root
        self._failure = failure

    def __str__(self) -> str:
        return self.root

    @abstractmethod
    def names(self, folder: str = "") -> list[str]:
        """Names in a folder, sorted; none if there is no such folder."""

    @abstractmethod
    def read(self, paths: list[str]) -> list[bytes]:
        """Contents of files."""

    @abstractmethod
    def write(self, path: str, content: bytes) -> None:
        """Writes a file, whole or not at all, over one that is there."""

    @abstractmethod
    def create(self, path: str, content: bytes) -> bool:
        """Writes a file, whole or not at all; False if there is another one already."""

    @abstractmethod
    def put_folder(
        self, path: str, fill: Callable[[Path], None], is_whole: Callable[[Path], bool]
    ) -> None:
        """Makes a folder of files that never change, or repairs it.

        Args:
            path: the folder; here it appears as a whole, elsewhere file by file.
            fill: writes the files into an empty folder of this machine.
            is_whole: whether a folder of this machine holds these files as they should be.
        """

    @abstractmethod
    def remove(self, path: str = "") -> None:
        """Removes a file, or a folder with all that is in it, if it is there."""

    @contextlib.contextmanager
    def _reporting(self, what: str) -> Iterator[None]:
        """Turns what the file system raises into an error of one line."""
        try:
            yield
        except RLServiceError:
            raise
        except Exception as error:  # OSError here; elsewhere fsspec's libraries have their own
            reason = one_line(reason_of(error) if isinstance(error, OSError) else error)
            raise self._failure(what, reason or type(error).__name__) from error


class LocalStorage(Storage):
    """A folder, which several processes and machines may share."""

    def __init__(self, folder: Path, failure: Failure) -> None:
        super().__init__(str(folder), failure)
        self.local_path: Path = folder

    def names(self, folder: str = "") -> list[str]:
        with self._reporting("read"):
            try:
                return sorted(os.listdir(self.local_path / folder))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def read(self, paths: list[str]) -> list[bytes]:
        with self._reporting("read"):
            return [(self.local_path / path).read_bytes() for path in paths]

    def write(self, path: str, content: bytes) -> None:
        with self._reporting("write"):
            target = self._target(path)
            with written_beside(target, content) as staged:
                staged.replace(target)

    def create(self, path: str, content: bytes) -> bool:
        with self._reporting("write"):
            target = self._target(path)
            try:
                with written_beside(target, content) as staged:
                    os.link(staged, target)  # unlike a rename, it fails if there is a target
            except FileExistsError:
                return False
        return True

    def put_folder(
        self, path: str, fill: Callable[[Path], None], is_whole: Callable[[Path], bool]
    ) -> None:
        with self._reporting("write"):
            target = self._target(path)
            if is_whole(target):
                return
            staged = Path(tempfile.mkdtemp(prefix=_COPYING, dir=target.parent))
            try:
                fill(staged)
                staged.chmod(0o755)  # mkdtemp makes folders that only their owner may enter
                sync_folder(staged)
                _put_in_place(staged, target, is_whole)
            finally:
                shutil.rmtree(staged, ignore_errors=True)
            sync_to_disk(target.parent)

    def remove(self, path: str = "") -> None:
        target = self.local_path / path
        with (
            self._reporting("write"),
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
        ):
            shutil.rmtree(target) if target.is_dir() else target.unlink()

    def _target(self, path: str) -> Path:
        """Where to write, in a folder that exists and holds nothing abandoned."""
        target = self.local_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(target.parent)
        return target


def _put_in_place(staged: Path, target: Path, is_whole: Callable[[Path], bool]) -> None:
    """Renames a folder; one that is there already is replaced if it is damaged."""
    try:
        staged.rename(target)
    except OSError:
        if is_whole(target):  # another process was first
            return
        if not target.is_dir():
            raise
        swap_in(staged, target)


def _remove_abandoned(folder: Path) -> None:
    """Clears what killed processes left; another process may be doing the same."""
    for path in folder.iterdir():
        if not path.name.startswith((WRITING, _COPYING)):
            continue
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


class RemoteStorage(Storage):
    """Files below a path of a file system of fsspec."""

    def __init__(
        self, uri: str, file_system: fsspec.AbstractFileSystem, path: str, failure: Failure
    ) -> None:
        super().__init__(uri, failure)
        self.file_system = file_system
        self.path = path

    def names(self, folder: str = "") -> list[str]:
        path = self._full(folder)
        with self._reporting("read"):
            self.file_system.invalidate_cache(path)  # another process may have written
            try:
                found = self.file_system.ls(path, detail=False)
            except FileNotFoundError:
                return []
        return sorted(name.rstrip("/").rpartition("/")[2] for name in found)

    def read(self, paths: list[str]) -> list[bytes]:
        full = [self._full(path) for path in paths]
        with self._reporting("read"):
            # All at once, if it can. `cat` would read paths as patterns, as glob and rm do.
            contents = self.file_system.cat_ranges(full, None, None)
            for content in contents:
                if isinstance(content, Exception):
                    raise content
        return list(contents)

    def write(self, path: str, content: bytes) -> None:
        with self._reporting("write"):
            self.file_system.pipe_file(self._target(path), content)

    def create(self, path: str, content: bytes) -> bool:
        with self._reporting("write"), _create_lock:
            target = self._target(path)
            try:
                self.file_system.pipe_file(target, content, mode="create")
            except Exception:  # each library says in its own way that there is one
                self.file_system.invalidate_cache(target)
                if not self.file_system.exists(target):
                    raise
        # Read back: an answer that was lost, and sent again, looks like another's file.
        return self.read([path]) == [content]

    def put_folder(
        self, path: str, fill: Callable[[Path], None], is_whole: Callable[[Path], bool]
    ) -> None:
        with self._reporting("write"), tempfile.TemporaryDirectory() as staged:
            fill(Path(staged))
            for name in sorted(os.listdir(staged)):
                self.file_system.put_file(f"{staged}/{name}", self._target(f"{path}/{name}"))

    def remove(self, path: str = "") -> None:
        with self._reporting("write"), contextlib.suppress(FileNotFoundError):
            if self.file_system.isfile(self._full(path)):
                self.file_system.rm_file(self._full(path))
            else:
                self.file_system.rm(self._full(path), recursive=True)

    def _target(self, path: str) -> str:
        """Where to write, in a folder that exists."""
        full = self._full(path)
        self.file_system.makedirs(full.rpartition("/")[0], exist_ok=True)
        return full

    def _full(self, path: str) -> str:
        return f"{self.path}/{path}" if path else self.path
