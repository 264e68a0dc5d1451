"""Versions of a policy's name, read from its log: numbered entries, each written once.

The newest entry holds all aliases, so that a poll reads one small file. A writer reads them all
and creates the entry after its newest; if another one was faster, it reads and decides again.
"""

from __future__ import annotations

import random
import re
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field, ValidationError

from custom_models.kinds import Group
from rl_service.common.errors import RegistryError
from rl_service.common.storage import Storage

FORMAT_VERSION: Final = 1
_FILE = re.compile(r"(\d{8})\.json", re.ASCII)
_MAX_ATTEMPTS = 200
_LONGEST_PAUSE_S = 0.05

Version = Annotated[int, Field(ge=1)]
Aliases = dict[str, Version]


class Registered(Group):
    """A version, as it was registered."""

    version: Version
    env: str
    model: str
    episode_return_mean: float | None
    """Of the evaluation that chose it."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Entry(Group):
    """One file."""

    format_version: Literal[1] = FORMAT_VERSION
    id: str = Field(default_factory=lambda: secrets.token_hex(8))
    """Tells apart two writers that write the same."""
    written_at: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    registered: Registered | None = None
    aliases: Aliases
    """All that there are from here on."""


class PolicyVersion(NamedTuple):
    """A registered bundle."""

    name: str
    version: int
    """From 1, in the order of registration."""
    aliases: tuple[str, ...]
    """Sorted; those that it had when it was read."""
    created_at: str
    """UTC, ISO 8601."""
    env: str
    model: str
    episode_return_mean: float | None
    """Of the evaluation that chose it; None if there was none."""
    sha256: str
    """Digest of the bundle; see `rl_service.policies.bundle_files`."""


class EntryLog:
    """The entries of one name in a storage."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage = storage
        self._name = name
        self._folder = f"{name}/history"

    def length(self) -> int:
        """Number of entries; 0 if the name is unknown."""
        found = [_FILE.fullmatch(name) for name in self._storage.names(self._folder)]
        return max((int(match[1]) for match in found if match), default=0)

    def entries(self) -> list[Entry]:
        """All entries, oldest first."""
        return self._read(range(1, self.length() + 1))

    def aliases(self) -> Aliases:
        """Each alias and its version; none if the name is unknown."""
        length = self.length()
        return self._read(range(length, length + 1))[0].aliases if length else {}

    def append(self, decide: Callable[[list[Entry]], Entry | None]) -> None:
        """Adds the entry that is decided on in view of all before; None adds none.

        Raises:
            RegistryError: if others were faster time and again, or the storage fails.
        """
        for _ in range(_MAX_ATTEMPTS):
            entries = self.entries()
            entry = decide(entries)
            if entry is None:
                return
            content = (entry.model_dump_json(indent=2) + "\n").encode()
            if self._storage.create(self._path(len(entries) + 1), content):
                return
            time.sleep(random.uniform(0.0, _LONGEST_PAUSE_S))
        raise RegistryError(
            f"{self._name} in the registry {self._storage} is changed by others without a pause; "
            f"try again later"
        )

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:08}.json"

    def _read(self, numbers: range) -> list[Entry]:
        paths = [self._path(number) for number in numbers]
        contents = self._storage.read(paths)
        return [self._parse(*pair) for pair in zip(paths, contents, strict=True)]

    def _parse(self, path: str, content: bytes) -> Entry:
        try:
            return Entry.model_validate_json(content, strict=True)
        except ValidationError as error:
            raise RegistryError(
                f"{path} in the registry {self._storage} is damaged or from another release of "
                f"rl-service; restore that file"
            ) from error


def versions_of(name: str, entries: list[Entry]) -> list[PolicyVersion]:
    """The versions that the entries of a name register, oldest first."""
    aliases = entries[-1].aliases if entries else {}
    return [
        PolicyVersion(
            name=name,
            aliases=tuple(sorted(a for a, v in aliases.items() if v == entry.registered.version)),
            created_at=entry.written_at,
            **entry.registered.model_dump(),
        )
        for entry in entries
        if entry.registered is not None
    ]


def pick(version: int, versions: list[PolicyVersion]) -> PolicyVersion:
    """The version of that number, or a RegistryError that says which there are."""
    for candidate in versions:
        if candidate.version == version:
            return candidate
    newest = versions[-1]
    raise RegistryError(
        f"policy {newest.name} has no version {version}; there are 1 to {newest.version}, see "
        f"rl-service policies list"
    )
