"""Replaces a whole folder, so that a reader finds the old one or the new one, never a mixture."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rl_service.common.files import output_errors, sync_to_disk

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextmanager
def replacing_folder(path: Path, remedy: str | None = None) -> Iterator[Path]:
    """Yields an empty folder beside `path` that takes its place if the block succeeds.

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
            for file in [*staged.iterdir(), staged]:
                sync_to_disk(file)
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
    """Swaps two folders in one step with Linux's renameat2; False where there is none."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    if renameat2 is None:
        return False
    names = os.fsencode(first), os.fsencode(second)
    return bool(renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)
