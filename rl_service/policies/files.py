"""The files of a bundle, and the digest of them all."""

from __future__ import annotations

import hashlib
from pathlib import Path

from rl_service.errors import BundleError
from rl_service.files import sha256_of

SPEC_FILE, WEIGHTS_FILE, CARD_FILE = "policy.json", "policy.safetensors", "card.md"
BUNDLE_FILES = (CARD_FILE, SPEC_FILE, WEIGHTS_FILE)
"""Sorted; nothing else that lies in a bundle's folder is a part of it."""


def bundle_sha256(folder: Path) -> str:
    """Digest of a bundle, hexadecimal: that of what `sha256sum` prints for its files, sorted.

    Raises:
        BundleError: if a file is missing or cannot be read.
    """
    try:
        lines = [f"{sha256_of(folder / name)}  {name}\n" for name in BUNDLE_FILES]
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BundleError(
            f"{error.filename} cannot be read: {reason}; a bundle is a folder with "
            f"{', '.join(BUNDLE_FILES)}"
        ) from error
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def is_whole_bundle(folder: Path, sha256: str) -> bool:
    """Whether a folder holds the bundle with that digest, nothing of it missing or changed."""
    try:
        return bundle_sha256(folder) == sha256
    except BundleError:
        return False
