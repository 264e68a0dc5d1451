"""Files that are whole or absent: written beside, flushed to the disk, renamed into place."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rl_service.common.errors import OutputError

# Rust libraries (safetensors) and torch's zip writer report a full disk as their own exception
# types; the error number survives only in the text.
_FULL_DISK = re.compile(r"No space left|StorageFull|os error (28|27|122)\b|code: (28|27|122)\b")


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
        raise OutputError(f"cannot write {path}: {_reason(error)}; {what_to_do}") from error
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
    with output_errors(path):
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o644)  # mkstemp makes files that only their owner may read
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_to_disk(path.parent)


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


def _reason(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "the disk is full"
    return (error.strerror or str(error)).lower()


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return _FREE_SPACE
    return "choose another output folder (-o) or mend its permissions"
