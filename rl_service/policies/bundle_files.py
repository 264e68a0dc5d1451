"""The files of a bundle: opened only if they are what they must be; their digest, and copies.

A bundle may come from a stranger: a link could lead to any file of this machine, a pipe or a device
never ends, and a large file fills memory or disk.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Final

from rl_service.common.errors import BundleError, RegistryError

FORMAT: Final = "rl-service-policy"
SPEC_FILE, WEIGHTS_FILE, CARD_FILE = "policy.json", "policy.safetensors", "card.md"
BUNDLE_FILES = (CARD_FILE, SPEC_FILE, WEIGHTS_FILE)
"""Sorted; nothing else that lies in a bundle's folder is a part of it."""
MAX_SPEC_BYTES = 8 * 2**20
MAX_CARD_BYTES = 2**20
MAX_NUMBERS, _MAX_NESTED = 200_000, 10_000
"""Numbers, and lists and keys, in `policy.json`; more would take much memory to read."""
_CACHE_FOLDER = "~/.cache/rl-service/policies"


@contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """Turns a failure of the file system at `path` into a BundleError."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BundleError(
            f"{path} cannot be read: {reason}; a bundle is a folder with {', '.join(BUNDLE_FILES)}"
        ) from error


def open_file(path: Path, max_bytes: int) -> BufferedReader:
    """Opens a file of a bundle for reading.

    Raises:
        BundleError: if it is missing, no regular file, or too large.
    """
    foreign = BundleError(f"{path} is no regular file; copy the bundle again, without links")
    with read_errors(path):
        try:  # without waiting for the writer of a pipe
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
                raise foreign from None
            raise
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size <= max_bytes:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise foreign
    raise BundleError(
        f"{path} is larger than {max_bytes} bytes, the most that it can have in this bundle; copy "
        f"the bundle again"
    )


def check_amount(text: bytes, path: Path) -> None:
    """Raises a BundleError for a description that takes much memory to read."""
    nested = sum(map(text.count, (b"[", b"{", b":")))
    if nested > _MAX_NESTED or text.count(b",") > MAX_NUMBERS:
        raise BundleError(
            f"{path} is no {FORMAT} file: it holds more than {MAX_NUMBERS} numbers or "
            f"{_MAX_NESTED} lists and keys; a policy needs observations of fewer numbers"
        )


def open_files(folder: Path) -> Iterator[tuple[str, BufferedReader]]:
    """Names and open files of a bundle, in the order of BUNDLE_FILES.

    Raises:
        BundleError: as `open_file`, or if `policy.json` describes no policy.
    """
    from rl_service.policies.spec import read_spec  # which imports this module

    max_weights_bytes = read_spec(folder).max_weights_bytes
    limits = (MAX_CARD_BYTES, MAX_SPEC_BYTES, max_weights_bytes)
    for name, max_bytes in zip(BUNDLE_FILES, limits, strict=True):
        with open_file(folder / name, max_bytes) as file:
            yield name, file


def bundle_sha256(folder: Path) -> str:
    """Digest of a bundle, hexadecimal: that of what `sha256sum` prints for its files, sorted.

    Raises:
        BundleError: if a file is missing, cannot be read, or is none of a bundle.
    """
    with read_errors(folder):
        lines = [f"{_sha256(file)}  {name}\n" for name, file in open_files(folder)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _sha256(file: BufferedReader) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()


def is_whole_bundle(folder: Path, sha256: str) -> bool:
    """Whether a folder holds the bundle with that digest, nothing of it missing or changed."""
    try:
        return bundle_sha256(folder) == sha256
    except BundleError:
        return False


def copy_bundle(source: Path, target: Path, sha256: str) -> None:
    """Copies the files of a bundle into an empty folder.

    Raises:
        BundleError: if the copy has another digest.
    """
    for name, file in open_files(source):
        with (target / name).open("wb") as copy:
            shutil.copyfileobj(file, copy)
    check_digest(target, source, sha256)


def check_digest(folder: Path, source: object, sha256: str) -> None:
    """Raises a BundleError if the bundle in a folder, a copy of `source`, has another digest."""
    if bundle_sha256(folder) != sha256:
        raise BundleError(
            f"{source} is damaged, or changed while it was copied: its sha256 is not "
            f"{sha256[:12]}…; try again, or register that policy again"
        )


def cache_folder() -> Path:
    """Where this machine keeps copies of bundles, each in a folder named after its digest."""
    return Path(_CACHE_FOLDER).expanduser()


def cached_bundle(sha256: str, copy: Callable[[Path], None]) -> Path:
    """The cache's copy of a bundle, made now if there is none.

    Args:
        sha256: digest of the bundle.
        copy: writes the bundle's files into an empty folder.

    Raises:
        RegistryError: if the cache cannot be written.
    """
    from rl_service.common.storage import open_storage  # fsspec takes a while to import

    cache = open_storage(_CACHE_FOLDER, _cache_failure)
    cache.put_folder(sha256, copy, partial(is_whole_bundle, sha256=sha256))
    return cache_folder() / sha256


def _cache_failure(_: str, reason: str) -> RegistryError:
    return RegistryError(
        f"{cache_folder()}, where copies of bundles are kept, cannot be written: {reason}; fix "
        f"that, or set HOME to another folder"
    )
