"""Folders and files that others write, read again and again and never trusted.

Links are not followed: a name that a client sends, or a folder that was copied from elsewhere, must
not lead out of the output folder.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

_LOCKS = Path("/proc/locks")
_LOCK = re.compile(r"\d+: FLOCK +\w+ +\w+ +-?\d+ ([0-9a-f]+):([0-9a-f]+):(\d+) ")
"""`3: FLOCK  ADVISORY  WRITE 21493 fe:00:2195484 0 EOF`; one that waits has `->` before FLOCK."""
_RECENT_S = 120.0
_STARTED = re.compile(r"(\d{8}-\d{6})-[0-9a-f]+$")
"""End of the name of a run's folder, and of an experiment's."""
_MAX_BYTES = 256 * 1024 * 1024
"""Of a file that is read; 100,000 iterations have about 100 MiB."""
MAX_YAML_BYTES = 1024 * 1024
"""Of a file with settings; a megabyte takes seconds to parse."""


def regular_file(path: Path, max_bytes: int = _MAX_BYTES) -> os.stat_result | None:
    """Size and times of a file; None if it is missing, too large, or no plain file."""
    try:
        info = path.lstat()
    except (OSError, ValueError):  # ValueError: a null character in the name
        return None
    return info if stat.S_ISREG(info.st_mode) and info.st_size <= max_bytes else None


def folders_in(path: Path) -> Iterator[Path]:
    """Folders in a folder, in no order; none if it cannot be read."""
    try:
        with os.scandir(path) as entries:
            found = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    yield from (path / name for name in found)


def folder_below(root: Path, reference: str, depth: int) -> Path | None:
    """The folder that a client means; None if there is none, or it is not where it should be.

    Args:
        root: holds it.
        reference: `depth` names with `/` between them.
        depth: how far below the root it lies.
    """
    names = reference.split("/")
    if len(names) != depth or any(name in ("", ".", "..") for name in names):
        return None
    path = root
    try:
        for name in names:
            path = path / name
            if not stat.S_ISDIR(path.lstat().st_mode):  # a link is none
                return None
    except (OSError, ValueError):
        return None
    return path


def started_at(folder: Path) -> float:
    """When a run or an experiment was started, in Unix seconds: by its name, else by its files."""
    found = _STARTED.search(folder.name)
    if found is not None:
        try:
            return datetime.strptime(found[1], "%Y%m%d-%H%M%S").timestamp()
        except (ValueError, OverflowError):  # digits that are no date
            pass
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


class _Inode(NamedTuple):
    major: int
    minor: int
    number: int


class Locks:
    """Which folders a process of this machine has locked now; see `Run.lock`.

    The locks are looked up rather than tried: a training that starts while we hold its lock, if
    only for a moment, would be refused. Where the system has no list of them (it is not Linux), a
    folder counts as locked for two minutes after its last change. Locks of other machines, and of
    containers beside this one, are not in the list.
    """

    def __init__(self) -> None:
        self._held = _held()

    def holds(self, folder: Path, updated: float, now: float) -> bool:
        """Whether a process is at work on a folder.

        Args:
            folder: of a run or an experiment.
            updated: Unix seconds of its last change.
            now: Unix seconds.
        """
        if self._held is None:
            return now - updated < _RECENT_S
        try:
            info = folder.lstat()
        except OSError:
            return False
        device = info.st_dev
        return _inode(os.major(device), os.minor(device), info.st_ino) in self._held


def _held() -> set[_Inode] | None:
    """What is locked with flock; None if the system does not say."""
    try:
        lines = _LOCKS.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    found = (_LOCK.match(line) for line in lines)
    return {_inode(int(m[1], 16), int(m[2], 16), int(m[3])) for m in found if m is not None}


def _inode(major: int, minor: int, number: int) -> _Inode:
    # Btrfs and overlays have devices of major number 0, and show another minor number here than to
    # those who ask for a file's.
    return _Inode(major, minor if major else 0, number)


class Kept(Generic[T]):
    """What files were read to, until they change.

    Args:
        read: reads a file; also gets what it was read to before, or None.
        max_files: kept at a time; of more, those that were asked for least recently go.
        max_bytes: of a file; larger ones are not read.
    """

    def __init__(
        self,
        read: Callable[[Path, T | None], T],
        max_files: int,
        max_bytes: int = _MAX_BYTES,
    ) -> None:
        self._read = read
        self._max_files = max_files
        self._max_bytes = max_bytes
        self._kept: dict[Path, tuple[tuple[int, int, int], T | None]] = {}

    def get(self, path: Path) -> T | None:
        """What the file is read to; None if it is missing, damaged or something else."""
        info = regular_file(path, self._max_bytes)
        stamp, value = self._kept.pop(path, (None, None))
        if info is None:
            return None
        found = (info.st_ino, info.st_size, info.st_mtime_ns)
        if found != stamp:
            try:
                value = self._read(path, value)
            except Exception:  # a foreign file may be wrong in any way; it is read once
                value = None
        self._kept[path] = (found, value)
        if len(self._kept) > self._max_files:
            del self._kept[next(iter(self._kept))]
        return value
