"""Files and folders that are whole or absent: written beside, flushed, renamed into place."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rl_service.common.errors import OutputError

# Rust libraries (safetensors) and torch's zip writer report a full disk as their own exception
# types; the error number survives only in the text.
_FULL_DISK = re.compile(r"No space left|StorageFull|os error (28|27|122)\b|code: (28|27|122)\b")

WRITING = ".writing-"
"""Beginning of the names of files that are not whole yet."""
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextlib.contextmanager
def output_errors(path: Path, remedy: str | None = None) -> Iterator[None]:
    """Turns a failure to write `path` into an OutputError of one line.

    Args:
        path: what is being written.
        remedy: what to do about it; None: choose another output folder.

    Raises:
        OutputError: if the block fails to write.
    """
    try:
        yield
    except OSError as error:
        what_to_do = remedy or _remedy(error)
        raise OutputError(f"cannot write {path}: {reason_of(error)}; {what_to_do}") from error
    except Exception as error:
        if not _FULL_DISK.search(str(error)):
            raise
        what_to_do = remedy or _FREE_SPACE
        raise OutputError(f"cannot write {path}: the disk is full; {what_to_do}") from error


def write_atomic(path: Path, text: str) -> None:
    """Replaces the file at `path` by one with `text`; a kill leaves the old or the new one.

    Raises:
        OutputError: if the folder cannot be written or the disk is full; the old file stays.
    """
    with output_errors(path), written_beside(path, text.encode()) as staged:
        staged.replace(path)


@contextlib.contextmanager
def written_beside(path: Path, content: bytes) -> Iterator[Path]:
    """Yields a whole file in the folder of `path`, from where the block puts it in place."""
    handle, name = tempfile.mkstemp(prefix=WRITING, dir=path.parent)
    staged = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        staged.chmod(0o644)  # mkstemp makes files that only their owner may read
        yield staged
    finally:
        staged.unlink(missing_ok=True)
    sync_to_disk(path.parent)


@contextlib.contextmanager
def replacing_folder(path: Path, remedy: str | None = None) -> Iterator[Path]:
    """Yields an empty folder beside `path` that takes its place if the block succeeds.

    A reader finds the old folder or the new one, never a mixture.

    Args:
        path: the folder.
        remedy: as that of `output_errors`.

    Raises:
        OutputError: if the disk is full or a folder cannot be written; `path` stays as it was.
    """
    path = path.absolute()
    staged = path.with_name(f".{path.name}.new")
    with output_errors(path, remedy):
        shutil.rmtree(staged, ignore_errors=True)  # left behind by a kill
        staged.mkdir(parents=True)
        try:
            yield staged
            sync_folder(staged)
            swap_in(staged, path)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        sync_to_disk(path.parent)


def swap_in(staged: Path, path: Path) -> None:
    """Puts `staged` at `path`; what stood there is then at `staged`."""
    if not path.exists():
        staged.rename(path)
    elif not _exchange(staged, path):
        # No atomic exchange here (not Linux, or an old file system): for a moment `path` is absent.
        old = path.with_name(f".{path.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
        staged.rename(path)
        shutil.rmtree(old)


def _exchange(first: Path, second: Path) -> bool:
    """Swaps two folders in one step with Linux's renameat2; False if the system cannot."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    if renameat2 is None:
        return False
    names = os.fsencode(first), os.fsencode(second)
    return bool(renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)


def sync_folder(folder: Path) -> None:
    """Waits until the files in a folder, and their names, are on the disk."""
    for path in [*folder.iterdir(), folder]:
        sync_to_disk(path)


def sync_to_disk(path: Path) -> None:
    """Waits until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def as_folder_name(text: str) -> str:
    """Text as a single folder name: `my.envs:Maze` becomes `my.envs_Maze`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip(".") or "_"


_FREE_SPACE = "free some space or choose another output folder"


def reason_of(error: OSError) -> str:
    """Why the file system refused, in a few words."""
    if error.errno == errno.ENOSPC:
        return "the disk is full"
    return (error.strerror or str(error)).lower()


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return _FREE_SPACE
    return "choose another output folder (-o) or fix its permissions"
