"""Versions of trained policies under names, and aliases that move between them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from rl_service.common.errors import RegistryError
from rl_service.common.replace import replacing_folder
from rl_service.common.text import nearest
from rl_service.policies.files import bundle_sha256
from rl_service.policies.history import Aliases, Entry, History, Registered
from rl_service.policies.references import (
    as_policy_name,
    check_alias,
    check_name,
    parse_reference,
)
from rl_service.policies.storage import check_digest, copy_bundle, open_storage

if TYPE_CHECKING:
    from rl_service.policies.spec import PolicySpec

REGISTRY_VARIABLE = "RL_SERVICE_REGISTRY"
REGISTRY_FOLDER = "policies"
BEST, PRODUCTION, PREVIOUS = "best", "production", "previous"


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
    """Digest of the bundle; see `rl_service.policies.files`."""


class PolicyRegistry:
    """A registry under a root, which several processes may use at once.

    A kill at any moment leaves the state before or after the call; readers never see half of it.
    What else holds where is told in docs/policies.md.

    Every method raises a RegistryError if the root cannot be reached, if a name, alias or
    reference is malformed, or if there is nothing of that name.

    Args:
        root: a folder or a URI of fsspec, which need not exist. None: `$RL_SERVICE_REGISTRY`, or
            `policies` in the current folder.
    """

    def __init__(self, root: str | None = None) -> None:
        root = root or os.environ.get(REGISTRY_VARIABLE) or REGISTRY_FOLDER
        self._storage = open_storage(root)

    @property
    def root(self) -> str:
        """The folder, absolute, or the URI."""
        return str(self._storage)

    def names(self) -> list[str]:
        """Names that have versions, sorted."""
        found = [name for name in self._storage.names("") if _is_name(name)]
        return [name for name in found if self._history(name).length()]

    def versions(self, name: str) -> list[PolicyVersion]:
        """Versions of a name, oldest first."""
        return _versions(name, self._known_entries(name))

    def aliases(self, name: str) -> dict[str, int]:
        """The version of each alias; lists one folder and reads one small file."""
        return self._history(name).aliases() or self._unknown(name)

    def register(
        self, bundle: Path, name: str | None = None, base_model: str | None = None
    ) -> PolicyVersion:
        """Adds a version, and moves `best` to it if it scores higher than the one that has it.

        Scores in another environment are not compared. A bundle that the name has already is not
        added again; what the registry keeps of it is mended if it was damaged.

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
        history = self._history(name)
        score = spec.evaluation.get("episode_return_mean")
        self._storage.put_bundle(bundle, f"{name}/bundles/{sha256}", sha256)

        def decide(entries: list[Entry]) -> Entry | None:
            versions = _versions(name, entries)
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

        history.append(decide)
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
        return _pick(version, _versions(name, entries))

    def fetch(self, version: PolicyVersion) -> Path:
        """A folder with the version's bundle; one of a cache if the registry is not local.

        Nothing in it may be changed; `export` makes a copy.
        """
        folder = f"{check_name(version.name)}/bundles/{version.sha256}"
        return self._storage.get_bundle(folder, version.sha256)

    def promote(self, name: str, version: int, alias: str = PRODUCTION) -> PolicyVersion:
        """Gives a version an alias; what had `production` before becomes `previous`.

        Raises:
            BundleError: if the version's bundle is damaged.
        """
        check_alias(alias)
        self._check_bundle(_pick(version, self._known_versions(name)))

        def decide(versions: list[PolicyVersion], aliases: Aliases) -> Aliases:
            _pick(version, versions)
            moved = {alias: version}
            if alias == PRODUCTION and aliases.get(alias, version) != version:
                moved[PREVIOUS] = aliases[alias]
            return aliases | moved

        self._move_aliases(name, decide)
        return _pick(version, self.versions(name))

    def rollback(self, name: str) -> PolicyVersion:
        """Swaps `production` and `previous`; returns the version that is in production now.

        Raises:
            BundleError: if the bundle of `previous` is damaged.
        """
        known = self._known_entries(name)
        if PREVIOUS in known[-1].aliases:
            self._check_bundle(_pick(known[-1].aliases[PREVIOUS], _versions(name, known)))

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
            _pick(to, versions)
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

    def _known_versions(self, name: str) -> list[PolicyVersion]:
        return _versions(name, self._known_entries(name))

    def _history(self, name: str) -> History:
        return History(self._storage, check_name(name))

    def _known_entries(self, name: str) -> list[Entry]:
        return self._history(name).entries() or self._unknown(name)

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
            aliases = decide(_versions(name, entries), before)
            return None if aliases == before else Entry(aliases=aliases)

        self._history(name).append(entry)


def _default_name(spec: PolicySpec) -> str:
    algorithm = str(spec.provenance.get("algorithm") or "")
    parts = [spec.env.id, spec.model.short_name, algorithm.rpartition(":")[2]]
    return as_policy_name(*(part for part in parts if part))


def _is_name(text: str) -> bool:
    try:
        return check_name(text) == text
    except RegistryError:  # something else that lies there
        return False


def _versions(name: str, entries: list[Entry]) -> list[PolicyVersion]:
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


def _is_best(new: Registered, versions: list[PolicyVersion], aliases: Aliases) -> bool:
    if BEST not in aliases:
        return True
    best = _pick(aliases[BEST], versions)
    if new.env != best.env or new.episode_return_mean is None:
        return False
    return best.episode_return_mean is None or new.episode_return_mean > best.episode_return_mean


def _pick(version: int, versions: list[PolicyVersion]) -> PolicyVersion:
    for candidate in versions:
        if candidate.version == version:
            return candidate
    newest = versions[-1]
    raise RegistryError(
        f"policy {newest.name} has no version {version}; there are 1 to {newest.version}, see "
        f"rl-service policies list"
    )
