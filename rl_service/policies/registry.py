"""Versions of trained policies under names, and aliases that move between them.

    <root>/<name>/history/00000001.json     registers a version, moves aliases, or both
    <root>/<name>/bundles/<sha256>/         the bundles that these entries name

No name can be a path: each is a word of a few harmless characters.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from custom_models.text import nearest
from rl_service.common.errors import RegistryError
from rl_service.common.files import replacing_folder
from rl_service.common.storage import open_storage
from rl_service.policies.bundle_files import (
    BUNDLE_FILES,
    bundle_sha256,
    cached_bundle,
    check_digest,
    copy_bundle,
    is_whole_bundle,
)
from rl_service.policies.locate import ZOO
from rl_service.policies.policy_versions import (
    Aliases,
    Entry,
    EntryLog,
    PolicyVersion,
    Registered,
    pick,
    versions_of,
)

if TYPE_CHECKING:
    from rl_service.policies.spec import PolicySpec

REGISTRY_VARIABLE = "RL_SERVICE_REGISTRY"
REGISTRY_FOLDER = "policies"
BEST, PRODUCTION, PREVIOUS = "best", "production", "previous"
_MAX_LENGTH = 100
_NAME = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{_MAX_LENGTH - 1}}}", re.ASCII)
_VERSION = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
_RULE = (
    f"use up to {_MAX_LENGTH} lower-case letters, digits, '-', '_' and '.', a letter or digit first"
)


class Reference(NamedTuple):
    """What of the registry is meant; at most one of `alias` and `version` is given."""

    name: str
    alias: str | None = None
    version: int | None = None


def check_name(name: str) -> str:
    """Returns the name of a policy, or raises a RegistryError if it is none."""
    if name == ZOO:
        raise RegistryError(f"a policy cannot be called {ZOO}: {ZOO}:NAME is one of the package's")
    return _checked("policy name", name)


def check_alias(alias: str) -> str:
    """Returns an alias, or raises a RegistryError if it is none."""
    return _checked("alias", alias)


def parse_reference(text: str) -> Reference:
    """Reads `name`, `name@alias` or `name:version`.

    Raises:
        RegistryError: if it is none of these.
    """
    name, at, alias = text.partition("@")
    if at:
        return Reference(check_name(name), alias=check_alias(alias))
    name, colon, version = text.partition(":")
    if colon and not _VERSION.fullmatch(version):
        raise RegistryError(
            f"{version!r} in policy {text!r} is no version; give a number from 1, as in {name}:3, "
            f"or an alias, as in {name}@best"
        )
    return Reference(check_name(name), version=int(version) if colon else None)


def _checked(what: str, word: str) -> str:
    if not _NAME.fullmatch(word):
        raise RegistryError(f"{word[:_MAX_LENGTH]!r} is no {what}; {_RULE}")
    return word


class PolicyRegistry:
    """A registry under a root, which several processes may use at once.

    A kill at any moment leaves the state before or after the call; readers never see half of it.
    docs/policies.md has the details of each kind of root.

    Every method raises a RegistryError if the root cannot be reached, if a name, alias or
    reference is malformed, or if there is nothing of that name.

    Args:
        root: a folder or a URI of fsspec, which need not exist. None: `$RL_SERVICE_REGISTRY`, or
            `policies` in the current folder.
    """

    def __init__(self, root: str | None = None) -> None:
        root = root or os.environ.get(REGISTRY_VARIABLE) or REGISTRY_FOLDER

        def failure(what: str, reason: str) -> RegistryError:
            return RegistryError(
                f"cannot {what} the policy registry {root}: {reason}; fix that, or choose another "
                f"with --root, tracking.registry or ${REGISTRY_VARIABLE}"
            )

        self._storage = open_storage(root, failure)

    @property
    def root(self) -> str:
        """The folder, absolute, or the URI."""
        return str(self._storage)

    def names(self) -> list[str]:
        """Names that have versions, sorted."""
        found = [name for name in self._storage.names() if _NAME.fullmatch(name) and name != ZOO]
        return [name for name in found if self._log(name).length()]

    def versions(self, name: str) -> list[PolicyVersion]:
        """Versions of a name, oldest first."""
        return versions_of(name, self._known_entries(name))

    def aliases(self, name: str) -> dict[str, int]:
        """The version of each alias; lists one folder and reads one small file."""
        return self._log(name).aliases() or self._unknown(name)

    def register(
        self, bundle: Path, name: str | None = None, base_model: str | None = None
    ) -> PolicyVersion:
        """Adds a version, and moves `best` to it if it scores higher than the one that has it.

        Scores in another environment are not compared. A bundle that the name has already is not
        added again; what the registry keeps of it is repaired if it was damaged.

        Args:
            bundle: its folder.
            name: None takes the one that training gives: environment, model and algorithm.
            base_model: see `load_bundle`.

        Raises:
            BundleError: if the bundle is damaged or fails its parity check.
        """
        from rl_service.policies.bundle import load_bundle  # torch takes seconds to load

        if name is not None:
            check_name(name)
        sha256 = bundle_sha256(bundle)
        spec = load_bundle(bundle, base_model).spec
        name = name or _default_name(spec)
        score = spec.evaluation.get("episode_return_mean")
        self._storage.put_folder(
            _folder(name, sha256),
            partial(copy_bundle, bundle, sha256=sha256),
            partial(is_whole_bundle, sha256=sha256),
        )

        def decide(entries: list[Entry]) -> Entry | None:
            versions = versions_of(name, entries)
            if any(version.sha256 == sha256 for version in versions):
                return None
            new = Registered(
                version=len(versions) + 1,
                env=spec.env.id,
                model=spec.model.name,
                episode_return_mean=float(score) if isinstance(score, int | float) else None,
                sha256=sha256,
            )
            aliases = entries[-1].aliases if entries else {}
            if _is_best(new, versions, aliases):
                aliases = aliases | {BEST: new.version}
            return Entry(registered=new, aliases=aliases)

        self._log(name).append(decide)
        return next(version for version in self.versions(name) if version.sha256 == sha256)

    def resolve(self, reference: str) -> PolicyVersion:
        """The version that is meant by `name@alias`, `name:version` or `name`.

        A name alone means its `production` version, or its `best` if there is none.
        """
        name, alias, version = parse_reference(reference)
        entries = self._known_entries(name)
        aliases = entries[-1].aliases
        if version is None:
            alias = alias or (PRODUCTION if PRODUCTION in aliases else BEST)
            if alias not in aliases:
                known = ", ".join(f"{name}@{known}" for known in sorted(aliases))
                raise RegistryError(
                    f"policy {name} has no alias {alias}; known: {known}; see "
                    f"rl-service policies list"
                )
            version = aliases[alias]
        return pick(version, versions_of(name, entries))

    def fetch(self, version: PolicyVersion) -> Path:
        """A folder with the version's bundle; one of a cache if the registry is not local.

        Nothing in it may be changed; `export` makes a copy.
        """
        folder, root = _folder(check_name(version.name), version.sha256), self._storage.local_path
        if root is None:
            return cached_bundle(version.sha256, partial(self._download, folder, version.sha256))
        if not (root / folder).is_dir():
            raise RegistryError(
                f"{root / folder} is missing; copy it back, or register that policy again"
            )
        return root / folder

    def promote(self, name: str, version: int, alias: str = PRODUCTION) -> PolicyVersion:
        """Gives a version an alias; what had `production` before becomes `previous`.

        Raises:
            BundleError: if the version's bundle is damaged.
        """
        check_alias(alias)
        self._check_bundle(pick(version, self.versions(name)))

        def decide(versions: list[PolicyVersion], aliases: Aliases) -> Aliases:
            pick(version, versions)
            moved = {alias: version}
            if alias == PRODUCTION and aliases.get(alias, version) != version:
                moved[PREVIOUS] = aliases[alias]
            return aliases | moved

        self._move_aliases(name, decide)
        return pick(version, self.versions(name))

    def rollback(self, name: str) -> PolicyVersion:
        """Swaps `production` and `previous`; returns the version that is in production now.

        Raises:
            BundleError: if the bundle of `previous` is damaged.
        """
        known = self._known_entries(name)
        if PREVIOUS in known[-1].aliases:
            self._check_bundle(pick(known[-1].aliases[PREVIOUS], versions_of(name, known)))

        def decide(versions: list[PolicyVersion], aliases: Aliases) -> Aliases:
            if not {PRODUCTION, PREVIOUS} <= aliases.keys():
                raise RegistryError(
                    f"policy {name} has no previous version to go back to; promote one with "
                    f"rl-service policies promote {name}:VERSION"
                )
            return aliases | {PRODUCTION: aliases[PREVIOUS], PREVIOUS: aliases[PRODUCTION]}

        self._move_aliases(name, decide)
        return self.resolve(f"{name}@{PRODUCTION}")

    def withdraw(self, name: str, version: int, to: int) -> None:
        """Moves `production` from a version that failed to another; nothing if it has moved on."""

        def decide(versions: list[PolicyVersion], aliases: Aliases) -> Aliases:
            if aliases.get(PRODUCTION) != version:
                return aliases
            pick(to, versions)
            return aliases | {PRODUCTION: to, PREVIOUS: version}

        self._move_aliases(name, decide)

    def export(self, reference: str, destination: Path) -> Path:
        """Copies a version's bundle into a new folder.

        Raises:
            OutputError: if the folder cannot be written.
        """
        version = self.resolve(reference)
        source = self.fetch(version)
        if destination.exists():
            raise RegistryError(f"{destination} exists already; export into a new folder")
        with replacing_folder(destination) as folder:
            copy_bundle(source, folder, version.sha256)
        return destination

    def _check_bundle(self, version: PolicyVersion) -> None:
        """Reads a bundle before an alias moves to it."""
        folder = self.fetch(version)
        check_digest(folder, folder, version.sha256)

    def _download(self, folder: str, sha256: str, target: Path) -> None:
        for file in BUNDLE_FILES:
            [content] = self._storage.read([f"{folder}/{file}"])
            (target / file).write_bytes(content)
        check_digest(target, f"{self.root}/{folder}", sha256)

    def _log(self, name: str) -> EntryLog:
        return EntryLog(self._storage, check_name(name))

    def _known_entries(self, name: str) -> list[Entry]:
        return self._log(name).entries() or self._unknown(name)

    def _unknown(self, name: str) -> NoReturn:
        names = self.names()
        near = nearest(name, names)
        hint = f"did you mean {near}? " if near else ""
        known = ", ".join(names) if names else "none yet; rl-service train registers its best"
        raise RegistryError(
            f"policy {name} is not in the registry {self.root}; {hint}known: {known}"
        )

    def _move_aliases(
        self, name: str, decide: Callable[[list[PolicyVersion], Aliases], Aliases]
    ) -> None:
        def entry(entries: list[Entry]) -> Entry | None:
            if not entries:
                self._unknown(name)
            before = entries[-1].aliases
            aliases = decide(versions_of(name, entries), before)
            return None if aliases == before else Entry(aliases=aliases)

        self._log(name).append(entry)


def _folder(name: str, sha256: str) -> str:
    return f"{name}/bundles/{sha256}"


def _default_name(spec: PolicySpec) -> str:
    """Of environment, model and algorithm: `my.envs:Maze` makes `my.envs_maze-mlp-ppo`."""
    algorithm = str(spec.provenance.get("algorithm") or "")
    parts = [spec.env.id, spec.model.short_name, algorithm.rpartition(":")[2]]
    words = [re.sub(r"[^a-z0-9._-]+", "_", part.lower()) for part in parts if part]
    return "-".join(words).lstrip("._-")[:_MAX_LENGTH]


def _is_best(new: Registered, versions: list[PolicyVersion], aliases: Aliases) -> bool:
    if BEST not in aliases:
        return True
    best = pick(aliases[BEST], versions)
    if new.env != best.env or new.episode_return_mean is None:
        return False
    return best.episode_return_mean is None or new.episode_return_mean > best.episode_return_mean
