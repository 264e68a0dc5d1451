"""Checkpoints of the training state: whole or absent, verified before they are trusted.

    checkpoints/iteration_000010/     the files of one checkpoint and a manifest.json of them
    checkpoints/.saving-*             one that is being written
    checkpoints/.deleting-*           one that is being removed

Names that start with a dot are never read; the next save removes those of a killed run.
"""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from rl_service.common.errors import CheckpointError
from rl_service.common.files import output_errors, sha256_of, sync_to_disk

FORMAT_VERSION = 1
_MANIFEST = "manifest.json"
_NAME = re.compile(r"iteration_\d+(_\d+)?")

logger = logging.getLogger(__name__)


class _File(BaseModel):
    size_bytes: int
    sha256: str


class _Manifest(BaseModel):
    format_version: int
    iteration: int
    files: dict[str, _File]


@dataclass(frozen=True)
class CheckpointStore:
    """The checkpoints of one run; one process writes, any may read."""

    path: Path
    keep: int
    """Newest checkpoints that stay after a save."""

    def save(self, iteration: int, write: Callable[[Path], None]) -> Path:
        """Saves a checkpoint; a kill or a full disk at any moment leaves the last whole one.

        Args:
            iteration: number of iterations done.
            write: writes the state's files into an empty folder.

        Returns:
            The checkpoint's folder.

        Raises:
            OutputError: if it cannot be written; earlier checkpoints stay.
        """
        with output_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()
            temporary = Path(tempfile.mkdtemp(prefix=".saving-", dir=self.path))
            try:
                write(temporary)
                _seal(temporary, iteration)
                saved = temporary.rename(self._free_name(iteration))
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            sync_to_disk(self.path)
            self._prune(saved)
        return saved

    def latest(self) -> Path | None:
        """The newest whole checkpoint, or None if nothing was saved yet.

        Raises:
            CheckpointError: if there are checkpoints and none is whole.
        """
        damage: CheckpointError | None = None
        for path in reversed(self._paths()):
            try:
                self.verify(path)
            except CheckpointError as error:
                damage = damage or error
                continue
            if damage is not None:
                logger.warning("%s; continuing from %s", damage, path.name)
            return path
        if damage is not None:
            raise damage
        return None

    def verify(self, path: Path) -> None:
        """Compares a checkpoint's files with its manifest.

        Raises:
            CheckpointError: naming the first file that is missing, truncated or changed.
        """
        for name, expected in _read_manifest(path).files.items():
            problem = _file_problem(path / name, expected)
            if problem:
                raise CheckpointError(
                    f"checkpoint {path} is damaged: {name} {problem}; "
                    f"remove that folder to continue from an earlier one"
                )

    def _paths(self) -> list[Path]:
        """Folders of checkpoints, oldest first."""
        if not self.path.is_dir():
            return []
        return sorted((p for p in self.path.iterdir() if _NAME.fullmatch(p.name)), key=_order)

    def _free_name(self, iteration: int) -> Path:
        """A folder cannot atomically replace another, so a second save gets a second name."""
        name = self.path / f"iteration_{iteration:06d}"
        attempt = 2
        while name.exists():
            name = self.path / f"iteration_{iteration:06d}_{attempt}"
            attempt += 1
        return name

    def _prune(self, saved: Path) -> None:
        paths = self._paths()
        position = paths.index(saved)
        # What is newer than a checkpoint just saved is damaged: the run resumed from before it.
        outdated = paths[: max(0, position + 1 - self.keep)] + paths[position + 1 :]
        for path in outdated:
            path.rename(path.with_name(f".deleting-{path.name}"))
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        for pattern in (".saving-*", ".deleting-*"):
            for path in self.path.glob(pattern):
                shutil.rmtree(path, ignore_errors=True)


def _order(path: Path) -> tuple[int, int]:
    _, iteration, *attempt = path.name.split("_")
    return int(iteration), int(attempt[0]) if attempt else 1


def _seal(folder: Path, iteration: int) -> None:
    """Writes the manifest and waits until all is on the disk."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    manifest = _Manifest(
        format_version=FORMAT_VERSION,
        iteration=iteration,
        files={
            str(path.relative_to(folder)): _File(
                size_bytes=path.stat().st_size, sha256=sha256_of(path)
            )
            for path in files
        },
    )
    (folder / _MANIFEST).write_text(manifest.model_dump_json(indent=2), encoding="utf-8")
    for path in [*files, folder / _MANIFEST, *(p for p in folder.rglob("*") if p.is_dir()), folder]:
        sync_to_disk(path)


def _read_manifest(path: Path) -> _Manifest:
    try:
        manifest = _Manifest.model_validate_json((path / _MANIFEST).read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} is not a complete checkpoint: its {_MANIFEST} is missing or unreadable; "
            f"remove that folder to continue from an earlier one"
        ) from error
    if manifest.format_version != FORMAT_VERSION:
        raise CheckpointError(
            f"checkpoint {path} has format version {manifest.format_version} "
            f"and this release reads {FORMAT_VERSION}; use the release that wrote it"
        )
    return manifest


def _file_problem(path: Path, expected: _File) -> str | None:
    if not path.is_file():
        return "is missing"
    size_bytes = path.stat().st_size
    if size_bytes != expected.size_bytes:
        return f"has {size_bytes} bytes instead of {expected.size_bytes}"
    return None if sha256_of(path) == expected.sha256 else "has changed (its checksum differs)"
