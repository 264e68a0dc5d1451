"""Where the served policies come from, and which version of each is wanted now."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from rl_service.errors import SettingsError
from rl_service.files import as_folder_name
from rl_service.policies.locate import find_policy
from rl_service.policies.references import ZOO, Reference, parse_reference
from rl_service.policies.registry import PRODUCTION, PolicyRegistry

_RENAMED = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,99})=(?P<reference>.+)")


class PolicySource(Protocol):
    """One served name. Its methods may read files or the network, so they run in a thread."""

    @property
    def name(self) -> str:
        """In the routes."""

    def wanted(self) -> int:
        """The version that shall take the traffic."""

    def knows(self, version: int) -> bool:
        """Whether there is such a version."""

    def fetch(self, version: int) -> Path:
        """A folder with its bundle."""

    def give_up(self, version: int, serves: int) -> None:
        """The version has failed its trial: what chose it shall choose the one that serves."""


class FolderSource:
    """A bundle that never changes: a folder, or a policy of the zoo.

    Args:
        name: in the routes.
        path: of the bundle.
    """

    def __init__(self, name: str, path: Path) -> None:
        self.name, self._path = name, path

    def wanted(self) -> int:
        return 1

    def knows(self, version: int) -> bool:
        return version == 1

    def fetch(self, version: int) -> Path:
        return self._path

    def give_up(self, version: int, serves: int) -> None:
        """There is no other version."""


class RegistrySource:
    """A name of the registry, at an alias that moves or at a version that stays.

    Args:
        name: in the routes.
        reference: `name`, `name@alias` or `name:version`.
        registry: where it is.
    """

    def __init__(self, name: str, reference: str, registry: PolicyRegistry) -> None:
        self.name = name
        self._text, self._registry = reference, registry
        self._reference: Reference = parse_reference(reference)
        self._aliases: dict[str, int] = {}
        self._wanted = 0

    def wanted(self) -> int:
        """Asks the registry for its aliases, and for more only if they have changed."""
        aliases = self._registry.aliases(self._reference.name)
        if aliases != self._aliases or not self._wanted:
            self._wanted = self._registry.resolve(self._text).version
            self._aliases = aliases
        return self._wanted

    def knows(self, version: int) -> bool:
        known = self._registry.versions(self._reference.name)
        return any(each.version == version for each in known)

    def fetch(self, version: int) -> Path:
        wanted = self._registry.resolve(f"{self._reference.name}:{version}")
        return self._registry.fetch(wanted)

    def give_up(self, version: int, serves: int) -> None:
        """Moves `production` back, if it is what led here and still points to that version."""
        if self._reference.version is None and self._reference.alias in (None, PRODUCTION):
            self._registry.withdraw(self._reference.name, version, to=serves)


def find_sources(policies: Iterable[str], registry_root: str | None) -> list[PolicySource]:
    """The sources of `[NAME=]POLICY` arguments.

    Args:
        policies: each a bundle folder, `name`, `name@alias`, `name:version` or `zoo:NAME`.
        registry_root: see `PolicyRegistry`.

    Raises:
        SettingsError: if two would have the same name.
        BundleError: if a folder or a policy of the zoo is not there.
        RegistryError: if the registry has no such policy.
    """
    registry = PolicyRegistry(registry_root)
    sources = [_source(policy, registry) for policy in policies]
    if not sources:
        raise SettingsError("there is no policy to serve; give a folder, name@alias or zoo:NAME")
    names = [source.name for source in sources]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SettingsError(
            f"two policies would be served as {twice[0]}; name one of them: OTHER=POLICY"
        )
    return sources


def _source(policy: str, registry: PolicyRegistry) -> PolicySource:
    renamed = _RENAMED.fullmatch(policy)
    reference = renamed["reference"] if renamed else policy
    kind, _, rest = reference.partition(":")
    if kind == ZOO or "/" in reference or Path(reference).is_dir():
        path = find_policy(reference)
        default = rest if kind == ZOO else as_folder_name(path.resolve().name)
        return FolderSource(renamed["name"] if renamed else default, path.resolve())
    name = renamed["name"] if renamed else parse_reference(reference).name
    source = RegistrySource(name, reference, registry)
    source.wanted()
    return source
