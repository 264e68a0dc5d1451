"""Where the served policies come from, and which version of each is wanted now."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from rl_service.common.errors import RegistryError, SettingsError
from rl_service.common.files import as_folder_name
from rl_service.policies.bundle_files import (
    BUNDLE_FILES,
    bundle_sha256,
    cache_folder,
    cached_bundle,
    copy_bundle,
    is_whole_bundle,
)
from rl_service.policies.locate import ZOO, find_policy
from rl_service.policies.policy_versions import PolicyVersion
from rl_service.policies.registry import PRODUCTION, PolicyRegistry, Reference, parse_reference

_DIGITS = 7
"""Of a digest, hexadecimal: as many as fit into a version of nine decimal digits."""
_RENAMED = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,99})=(?P<reference>.+)")


class PolicySource(ABC):
    """One served name. Its methods may read files or the network, so they run in a thread.

    Args:
        name: in the routes.
        base_model: folder of the language model that the policy was trained on, if that is not in
            the model store.
    """

    def __init__(self, name: str, base_model: str | None = None) -> None:
        self.name, self.base_model = name, base_model

    @abstractmethod
    def wanted(self) -> int:
        """The version that is to take the traffic."""

    @abstractmethod
    def knows(self, version: int) -> bool:
        """Whether there is such a version."""

    @abstractmethod
    def fetch(self, version: int) -> Path:
        """A folder with its bundle."""

    def history(self) -> list[PolicyVersion]:
        """All versions, oldest first; none where nobody keeps them."""
        return []

    def give_up(self, version: int, serves: int) -> None:  # noqa: B027 - most have no other
        """The version has failed its trial: what chose it is to choose the one that serves."""


class ZooSource(PolicySource):
    """A policy that ships with the package, and never changes."""

    def __init__(self, name: str, path: Path, base_model: str | None = None) -> None:
        super().__init__(name, base_model)
        self._path = path

    def wanted(self) -> int:
        return 1

    def knows(self, version: int) -> bool:
        return version == 1

    def fetch(self, version: int) -> Path:
        return self._path


class FolderSource(PolicySource):
    """A bundle in a folder, which may be replaced by another one at any time.

    The version is the beginning of the bundle's digest, as a number: all replicas agree on it,
    and two bundles differ in it, whatever their files are called or dated. A version is served
    from a copy in the cache, so that it stays what it is while the folder changes. A version that
    fails its trial is not tried again until the folder changes.
    """

    def __init__(self, name: str, path: Path, base_model: str | None = None) -> None:
        super().__init__(name, base_model)
        self._path = path
        self._stamp: list[tuple[int, int, int]] = []
        self._wanted = 0
        self._digests: dict[int, str] = {}
        """Of the versions that the folder has held."""

    def wanted(self) -> int:
        """Reads the whole bundle only if its files have changed.

        Raises:
            BundleError: if one of them is missing.
        """
        stamp = _stamp(self._path)
        if stamp != self._stamp or not stamp:
            sha256 = bundle_sha256(self._path)
            self._wanted = _version_of(sha256)
            self._digests[self._wanted] = sha256
            self._stamp = stamp
        return self._wanted

    def knows(self, version: int) -> bool:
        return version in self._digests

    def fetch(self, version: int) -> Path:
        """The copy of a version; another replica may have made it, and the folder moved on.

        Raises:
            RegistryError: if no copy exists, and the folder holds another bundle.
        """
        known = self._digests.get(version)
        for copy in sorted(cache_folder().glob(known or f"{_beginning(version)}*")):
            if is_whole_bundle(copy, copy.name):
                return copy
        sha256 = bundle_sha256(self._path)
        if _version_of(sha256) != version:
            raise RegistryError(
                f"{self._path} holds another bundle than version {version} of {self.name} now; "
                f"ask for the newest"
            )
        return cached_bundle(sha256, partial(copy_bundle, self._path, sha256=sha256))


class RegistrySource(PolicySource):
    """A name of the registry, at an alias that moves or at a version that stays.

    Args:
        name: in the routes.
        reference: `name`, `name@alias` or `name:version`.
        registry: where it is.
        base_model: see `PolicySource`.
    """

    def __init__(
        self,
        name: str,
        reference: str,
        registry: PolicyRegistry,
        base_model: str | None = None,
    ) -> None:
        super().__init__(name, base_model)
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
        return any(each.version == version for each in self.history())

    def history(self) -> list[PolicyVersion]:
        return self._registry.versions(self._reference.name)

    def fetch(self, version: int) -> Path:
        wanted = self._registry.resolve(f"{self._reference.name}:{version}")
        return self._registry.fetch(wanted)

    def give_up(self, version: int, serves: int) -> None:
        """Moves `production` back, if it is what led here and still points to that version."""
        if self._reference.version is None and self._reference.alias in (None, PRODUCTION):
            self._registry.withdraw(self._reference.name, version, to=serves)


def find_sources(
    policies: Iterable[str], registry_root: str | None, base_model: str | None = None
) -> list[PolicySource]:
    """The sources of `[NAME=]POLICY` arguments.

    Args:
        policies: each a bundle folder, `name`, `name@alias`, `name:version` or `zoo:NAME`.
        registry_root: see `PolicyRegistry`.
        base_model: see `load_bundle`.

    Raises:
        SettingsError: if two would have the same name.
        BundleError: if a folder or a policy of the zoo is not there.
        RegistryError: if the registry has no such policy.
    """
    registry = PolicyRegistry(registry_root)
    sources = [_source(policy, registry, base_model) for policy in policies]
    if not sources:
        raise SettingsError("no policy to serve; give a folder, name@alias or zoo:NAME")
    names = [source.name for source in sources]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SettingsError(
            f"two policies would be served as {twice[0]}; name one of them: OTHER=POLICY"
        )
    return sources


def _source(policy: str, registry: PolicyRegistry, base_model: str | None) -> PolicySource:
    renamed = _RENAMED.fullmatch(policy)
    name, reference = (renamed["name"], renamed["reference"]) if renamed else (None, policy)
    kind, _, rest = reference.partition(":")
    if kind == ZOO:
        return ZooSource(name or rest, find_policy(reference).absolute(), base_model)
    if "/" in reference or Path(reference).is_dir():
        path = find_policy(reference).absolute()
        return FolderSource(name or as_folder_name(path.resolve().name), path, base_model)
    name = name or parse_reference(reference).name
    source = RegistrySource(name, reference, registry, base_model)
    source.wanted()  # refuses an unknown policy
    return source


def _version_of(sha256: str) -> int:
    return 1 + int(sha256[:_DIGITS], 16)


def _beginning(version: int) -> str:
    """Of the digest that a version stands for."""
    return f"{version - 1:0{_DIGITS}x}"


def _stamp(folder: Path) -> list[tuple[int, int, int]]:
    """Changes whenever the files of a bundle do; empty if one cannot be read."""
    try:
        files = [(folder / name).stat() for name in BUNDLE_FILES]
    except OSError:
        return []
    return [(file.st_ino, file.st_mtime_ns, file.st_size) for file in files]
