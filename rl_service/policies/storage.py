"""Where a registry keeps its files: a folder here, or whatever fsspec reaches elsewhere.

A file is created once and never changed. So readers need no lock, and of two writers of one file
exactly one succeeds.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import fsspec
from fsspec.implementations.local import LocalFileSystem

from rl_service.common.errors import BundleError, RegistryError, RLServiceError
from rl_service.common.files import sync_to_disk
from rl_service.common.replace import swap_in
from rl_service.common.text import one_line
from rl_service.policies.files import BUNDLE_FILES, bundle_sha256, is_whole_bundle, open_files

CACHE_FOLDER = "~/.cache/rl-service/policies"
_WRITING, _COPYING = ".writing-", ".copying-"
"""Names of what is not whole yet begin so."""
_ABANDONED_S = 24 * 3600.0
"""Age at which half a file or copy can only be what a killed process left."""
_create_lock = threading.Lock()  # `memory://` looks first and writes then, and lives in one process


class Storage(Protocol):
    """Files below a root; paths are relative to it, with `/` between their parts."""

    def names(self, folder: str) -> list[str]:
        """Names in a folder, sorted; none if there is no such folder."""

    def read(self, paths: list[str]) -> list[bytes]:
        """Contents of files."""

    def create(self, path: str, content: bytes) -> bool:
        """Writes a file, whole or not at all; False if there is another one already."""

    def put_bundle(self, bundle: Path, folder: str, sha256: str) -> None:
        """Copies a bundle into a folder that is named after its digest, or mends what is there.

        Raises:
            BundleError: if the bundle has not that digest, or changes meanwhile.
        """

    def get_bundle(self, folder: str, sha256: str) -> Path:
        """A local folder of that bundle.

        Raises:
            BundleError: if it was damaged on its way.
            RegistryError: if it is missing.
        """


def open_storage(root: str) -> Storage:
    """The storage at a root, which need not exist yet.

    Args:
        root: a folder, `~` allowed, or a URI that fsspec knows (`s3://…`, `memory://…`).

    Raises:
        RegistryError: if nothing here can reach such a URI.
    """
    if "://" not in root:
        return LocalStorage(Path(root).expanduser().absolute())
    try:
        file_system, path = fsspec.url_to_fs(root)
    except (ImportError, ValueError) as error:
        raise RegistryError(
            f"the policy registry {root} cannot be reached: {error}; install what is missing or "
            f"give a folder"
        ) from error
    if isinstance(file_system, LocalFileSystem):
        return LocalStorage(Path(path))
    return RemoteStorage(root, file_system, path)


@contextlib.contextmanager
def registry_errors(root: str | Path) -> Iterator[None]:
    """Turns a failure to reach the registry into a RegistryError of one line."""
    try:
        yield
    except RLServiceError:
        raise
    except Exception as error:  # OSError here; elsewhere fsspec's libraries have their own
        reason = (isinstance(error, OSError) and error.strerror) or error
        text = one_line(reason) or type(error).__name__
        raise RegistryError(
            f"the policy registry {root} cannot be used: {text}; mend that, or choose another "
            f"with --root, tracking.registry or $RL_SERVICE_REGISTRY"
        ) from error


class LocalStorage:
    """A folder, which several processes and machines may share."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __str__(self) -> str:
        return str(self._root)

    def names(self, folder: str) -> list[str]:
        with registry_errors(self._root):
            try:
                return sorted(os.listdir(self._root / folder))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def read(self, paths: list[str]) -> list[bytes]:
        with registry_errors(self._root):
            return [(self._root / path).read_bytes() for path in paths]

    def create(self, path: str, content: bytes) -> bool:
        target = self._root / path
        with registry_errors(self._root):
            target.parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(target.parent)
            handle, name = tempfile.mkstemp(prefix=_WRITING, dir=target.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                os.chmod(name, 0o644)  # mkstemp makes files that only their owner may read
                os.link(name, target)  # unlike a rename, it fails if there is a target
            except FileExistsError:
                return False
            finally:
                os.unlink(name)
            sync_to_disk(target.parent)
        return True

    def put_bundle(self, bundle: Path, folder: str, sha256: str) -> None:
        target = self._root / folder
        with registry_errors(self._root):
            target.parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(target.parent)
            if is_whole_bundle(target, sha256):
                return
            staged = Path(tempfile.mkdtemp(prefix=_COPYING, dir=target.parent))
            try:
                copy_bundle(bundle, staged, sha256)
                staged.chmod(0o755)  # mkdtemp makes folders that only their owner may enter
                _put_in_place(staged, target, sha256)
            finally:
                shutil.rmtree(staged, ignore_errors=True)
            sync_to_disk(target.parent)

    def get_bundle(self, folder: str, sha256: str) -> Path:
        path = self._root / folder
        if not path.is_dir():
            raise RegistryError(f"{path} is missing; copy it back, or register that policy again")
        return path


def copy_bundle(source: Path, target: Path, sha256: str) -> None:
    """Copies the files of a bundle into an empty folder, and waits for the disk.

    Raises:
        BundleError: if the copy has another digest.
    """
    for name, file in open_files(source):
        with (target / name).open("wb") as copy:
            shutil.copyfileobj(file, copy)
        sync_to_disk(target / name)
    check_digest(target, source, sha256)
    sync_to_disk(target)


def check_digest(folder: Path, source: object, sha256: str) -> None:
    """Raises a BundleError if the bundle in a folder, a copy of `source`, has another digest."""
    if bundle_sha256(folder) != sha256:
        raise BundleError(
            f"{source} is damaged, or changed while it was copied: its sha256 is not "
            f"{sha256[:12]}…; try again, or register that policy anew"
        )


def cache_folder() -> Path:
    """Where this machine keeps copies of bundles, each in a folder named after its digest."""
    return Path(CACHE_FOLDER).expanduser()


def cache_bundle(bundle: Path, sha256: str) -> Path:
    """The cache's copy of a bundle, made now if there is none.

    Raises:
        BundleError: if the bundle has not that digest, or changes meanwhile.
        RegistryError: if the cache cannot be written.
    """
    cache = cache_folder()
    try:
        LocalStorage(cache).put_bundle(bundle, sha256, sha256)
    except RegistryError as error:
        raise RegistryError(
            f"{cache}, where copies of bundles are kept, cannot be written: "
            f"{one_line(error.__cause__)}; mend that, or set HOME to another folder"
        ) from error
    return cache / sha256


def _put_in_place(staged: Path, target: Path, sha256: str) -> None:
    """Renames a folder; one that is there already is replaced if it is damaged."""
    try:
        staged.rename(target)
    except OSError:
        if is_whole_bundle(target, sha256):  # another process was first
            return
        if not target.is_dir():
            raise
        swap_in(staged, target)


def _remove_abandoned(folder: Path) -> None:
    """Clears what killed processes left; another process may be doing the same."""
    for path in folder.iterdir():
        if not path.name.startswith((_WRITING, _COPYING)):
            continue
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


class RemoteStorage:
    """Files below a path of a file system of fsspec."""

    def __init__(self, uri: str, file_system: fsspec.AbstractFileSystem, path: str) -> None:
        self._uri = uri
        self._files = file_system
        self._path = path.rstrip("/")

    def __str__(self) -> str:
        return self._uri

    def names(self, folder: str) -> list[str]:
        path = self._full(folder)
        with registry_errors(self._uri):
            self._files.invalidate_cache(path)  # another process may have written
            try:
                found = self._files.ls(path, detail=False)
            except FileNotFoundError:
                return []
        return sorted(name.rstrip("/").rpartition("/")[2] for name in found)

    def read(self, paths: list[str]) -> list[bytes]:
        full = [self._full(path) for path in paths]
        with registry_errors(self._uri):
            contents = self._files.cat(full) if full else {}  # at once, where it can
            return [contents[path] for path in full]

    def create(self, path: str, content: bytes) -> bool:
        full = self._full(path)
        with registry_errors(self._uri), _create_lock:
            self._files.makedirs(full.rpartition("/")[0], exist_ok=True)
            try:
                self._files.pipe_file(full, content, mode="create")
            except Exception:  # each library says in its own way that there is one
                self._files.invalidate_cache(full)
                if not self._files.exists(full):
                    raise
        # Read back: an answer that was lost, and sent again, looks like another's file.
        return self.read([path]) == [content]

    def put_bundle(self, bundle: Path, folder: str, sha256: str) -> None:
        with registry_errors(self._uri):
            self._files.makedirs(self._full(folder), exist_ok=True)
            for name in BUNDLE_FILES:
                self._files.put_file(str(bundle / name), self._full(f"{folder}/{name}"))
            check_digest(bundle, bundle, sha256)

    def get_bundle(self, folder: str, sha256: str) -> Path:
        cached = cache_folder() / sha256
        if is_whole_bundle(cached, sha256):
            return cached
        with tempfile.TemporaryDirectory() as downloaded:
            self._download(folder, Path(downloaded))
            check_digest(Path(downloaded), f"{self._uri}/{folder}", sha256)
            return cache_bundle(Path(downloaded), sha256)

    def _download(self, folder: str, target: Path) -> None:
        for name in BUNDLE_FILES:
            [content] = self.read([f"{folder}/{name}"])  # several threads may read a file at once
            (target / name).write_bytes(content)

    def _full(self, path: str) -> str:
        return f"{self._path}/{path}" if path else self._path
