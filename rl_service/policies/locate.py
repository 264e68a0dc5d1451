"""Finds the policy that is meant: a folder, a name of the registry, or one of the package's."""

from __future__ import annotations

from pathlib import Path

import rl_service
from custom_models.text import nearest
from rl_service.common.errors import BundleError, RegistryError
from rl_service.policies.bundle_files import SPEC_FILE

ZOO = "zoo"
ZOO_FOLDER = Path(rl_service.__file__).parent / ZOO


def find_policy(reference: str) -> Path:
    """The folder of a policy's bundle, which is not loaded yet.

    Args:
        reference: a folder; `name`, `name@alias` or `name:version` of the registry; or `zoo:NAME`.
            A folder wins over a name of the registry.

    Raises:
        BundleError: if there is no such folder, or the zoo has no such policy.
        RegistryError: if the registry has none, or cannot be reached.
    """
    scheme, _, name = reference.partition(":")
    if scheme == ZOO:
        return _zoo_policy(name)
    folder = Path(reference).expanduser()
    if folder.is_dir():
        return folder
    if "/" in reference:
        raise BundleError(
            f"policy {reference} does not exist; give the folder of a policy bundle, a name of the "
            f"registry, or {ZOO}:NAME"
        )
    from rl_service.policies.registry import PolicyRegistry  # fsspec is for names alone

    registry = PolicyRegistry()
    try:
        return registry.fetch(registry.resolve(reference))
    except RegistryError as error:
        raise RegistryError(f"{reference} is no folder here, and {error}") from error


def zoo_names() -> list[str]:
    """Names of the trained policies that the package brings, sorted."""
    return sorted(path.parent.name for path in ZOO_FOLDER.glob(f"*/{SPEC_FILE}"))


def _zoo_policy(name: str) -> Path:
    names = zoo_names()
    if name in names:
        return ZOO_FOLDER / name
    near = nearest(name, names)
    hint = f"did you mean {ZOO}:{near}? " if near else ""
    known = ", ".join(f"{ZOO}:{known}" for known in names)
    raise BundleError(f"the package has no policy {ZOO}:{name}; {hint}known: {known}")
