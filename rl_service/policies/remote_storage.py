"""A registry that fsspec reaches: on S3, Google Cloud Storage, Azure, in memory.

A file is created by a conditional write (S3: If-None-Match, GCS: ifGenerationMatch, Azure: no
overwrite). Where a file system has none, fsspec looks first and writes then: of two writers within
the same moment both may believe that they were first, and one change of aliases is lost.
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

from rl_service.errors import RegistryError
from rl_service.policies.files import BUNDLE_FILES, is_whole_bundle
from rl_service.policies.storage import (
    LocalStorage,
    Storage,
    cache_bundle,
    cache_folder,
    check_digest,
    registry_errors,
)

_create_lock = threading.Lock()  # `memory://` looks first and writes then, and lives in one process


def open_uri(uri: str) -> Storage:
    """The storage at a URI.

    Raises:
        RegistryError: if no installed package reaches it.
    """
    try:
        file_system, path = fsspec.url_to_fs(uri)
    except (ImportError, ValueError) as error:
        raise RegistryError(
            f"the policy registry {uri} cannot be reached: {error}; install what is missing or "
            f"give a folder"
        ) from error
    if isinstance(file_system, LocalFileSystem):
        return LocalStorage(Path(path))
    return RemoteStorage(uri, file_system, path)


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
