"""Base language models as plain folders in Hugging Face format, in a local store.

A folder's name in the store is the model's name. Nothing here fetches anything: what is not in the
store is a FileNotFoundError that says how to get it.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import os
from contextlib import suppress
from pathlib import Path

STORE_VARIABLE = "RL_SERVICE_MODELS"
KNOWN = ("smollm2-135m", "gpt2-tokenizer")
"""Names that `rl-service models fetch` can put into the store."""

CONFIG_FILE = "config.json"
_WEIGHTS = "*.safetensors"
_OTHER_FILES = (
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)
_CHUNK_BYTES = 2**20

_FileVersion = tuple[Path, int, int]  # path, modification time in ns, size in bytes


def store_folder() -> Path:
    """The store: `$RL_SERVICE_MODELS`, or `~/.cache/rl-service/models`; it need not exist."""
    return _expanded(os.environ.get(STORE_VARIABLE) or "~/.cache/rl-service/models")


def stored_names() -> list[str]:
    """Names of the models in the store, sorted; a folder without `config.json` is none."""
    store = store_folder()
    if not store.is_dir():
        return []
    return sorted(path.name for path in store.iterdir() if _is_stored(store, path.name))


def find_model(name: str) -> Path:
    """The folder of a base model.

    Args:
        name: a folder with a `config.json`, `~` allowed, or the name of one in the store.

    Raises:
        FileNotFoundError: if there is neither; its text is one line and says what to do.
    """
    folder, store = _expanded(name), store_folder()
    if (folder / CONFIG_FILE).is_file():
        return folder
    if _is_stored(store, name):
        return store / name
    raise FileNotFoundError(f"no base model {name}: {_reason(folder, store)}; {_remedy(name)}")


def find_by_fingerprint(sha256: str, name: str, given: str | None = None) -> Path:
    """The folder of that very model, wherever it lies now.

    Args:
        sha256: its `fingerprint`.
        name: what it was called: looked at first.
        given: as for `find_model`, looked at before the store.

    Raises:
        FileNotFoundError: if neither is that model; its text is one line and says what to do.
    """
    store = store_folder()
    folders = [store / known for known in sorted(stored_names(), key=lambda known: known != name)]
    if given is not None:
        folders.insert(0, find_model(given))
    for folder in folders:
        with suppress(OSError):  # one that cannot be read is not the one
            if fingerprint(folder) == sha256:
                return folder
    but = "" if given is None else f"{given} is another one and "
    remedy = f"run `rl-service models fetch {name}`" if name in KNOWN else "link it into the store"
    raise FileNotFoundError(
        f"{but}the store {store} has no model {name} with the SHA-256 {sha256[:12]}…; {remedy}, "
        f"or give its folder with --base-model"
    )


def fingerprint(folder: Path) -> str:
    """SHA-256, hexadecimal, of what decides the outputs of the model in a folder.

    That is names and contents of its configuration, its safetensors weights and its tokenizer's
    files, as far as they are there. A process reads the files again only if their
    times or sizes change.

    Raises:
        OSError: if a file cannot be read.
    """
    paths = [*folder.glob(_WEIGHTS), *(folder / name for name in (CONFIG_FILE, *_OTHER_FILES))]
    files = sorted((path for path in paths if path.is_file()), key=lambda path: path.name)
    return _digest(tuple(_version(path.absolute()) for path in files))


def _expanded(path: str) -> Path:
    # Unlike Path.expanduser, this leaves the ~ of an unknown user as it is.
    return Path(os.path.expanduser(path))


def _is_stored(store: Path, name: str) -> bool:
    """Whether the store holds a model of that name; one with a leading dot is being fetched."""
    is_plain = bool(name) and Path(name).name == name and not name.startswith(".")
    return is_plain and (store / name / CONFIG_FILE).is_file()


def _reason(folder: Path, store: Path) -> str:
    if folder.is_dir():
        return f"that folder has no {CONFIG_FILE}"
    return f"it is neither a folder nor in the store {store}"


def _remedy(name: str) -> str:
    if name in KNOWN:
        return f"run `rl-service models fetch {name}`"
    names = sorted({*KNOWN, *stored_names()})
    near = next(iter(difflib.get_close_matches(name.lower(), names, n=1)), None)
    if near is None:
        return f"give a folder with a {CONFIG_FILE}, or one of {', '.join(names)}"
    is_there = _is_stored(store_folder(), near)
    return f"did you mean {near}?" + ("" if is_there else f" `rl-service models fetch {near}`")


def _version(path: Path) -> _FileVersion:
    status = path.stat()
    return path, status.st_mtime_ns, status.st_size


@functools.lru_cache(maxsize=64)
def _digest(files: tuple[_FileVersion, ...]) -> str:
    """Times and sizes are there for the cache: another version is another key."""
    digest = hashlib.sha256()
    for path, _, size_bytes in files:
        # Name and size delimit the contents: no two sets of files give the same stream.
        digest.update(f"{path.name}\0{size_bytes}\0".encode())
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()
