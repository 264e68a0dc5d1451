"""Where an experiment lies, and a second copy of what Ray Tune saves of it there.

Tune writes over its only snapshot, and starts an experiment all over, without a word, if it cannot
read it. So whole snapshots are copied as the experiment runs, and the trials that must come back
are read here before Tune is asked.

A snapshot is some files whose names end with the time at which their process started: one that
resumes an experiment begins a snapshot of its own, beside those before it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rl_service.common.errors import OutputError, RLServiceError, SettingsError, TuningError
from rl_service.common.storage import RemoteStorage, Storage, open_storage

PLAN_FILE = "tuning.yaml"
LOG_FILE = "log.txt"
DEFAULT_STORAGE = "runs"
BACKUP_FOLDER = "snapshot"
STATE = "experiment_state-"
"""Beginning of the name of a snapshot's file with the trials, which is JSON."""
_KINDS = (STATE, "search_gen_state-", "searcher-state-", "callback-states-")

logger = logging.getLogger(__name__)


def experiment_storage(root: str) -> Storage:
    """The storage of an experiment, which need not exist yet.

    Args:
        root: its folder, or a URI that all nodes reach.
    """

    def failure(what: str, reason: str) -> RLServiceError:
        if what == "reach":
            return SettingsError(
                f"--storage {root}: {reason}; give a folder or a URI whose protocol fsspec knows "
                f"here, such as s3://bucket/folder with s3fs installed"
            )
        return OutputError(
            f"cannot {what} {root}: {reason}; see that it exists and may be written with the "
            f"credentials here, or give another --storage"
        )

    return open_storage(root, failure)


def find_experiment(reference: str) -> Storage:
    """The storage of an experiment that exists.

    Args:
        reference: its folder or URI, or its name under `./runs`.

    Raises:
        TuningError: if there is none.
    """
    plain = reference.rstrip("/")
    candidates = [plain] if "://" in plain else [plain, f"{DEFAULT_STORAGE}/{plain}"]
    for candidate in filter(None, candidates):
        storage = experiment_storage(candidate)
        if PLAN_FILE in storage.names():
            return storage
    raise TuningError(
        f"no tuning experiment '{reference}': no {PLAN_FILE} in {' or '.join(candidates)}; give "
        f"its folder or URI"
    )


def tune_arguments(storage: Storage) -> dict[str, Any]:
    """What `tune.run` needs to know of an experiment's storage."""
    path = storage.path if isinstance(storage, RemoteStorage) else storage.root
    parent, _, name = path.rpartition("/")
    arguments: dict[str, Any] = {"name": name, "storage_path": parent}
    if isinstance(storage, RemoteStorage):
        import pyarrow.fs

        handler = pyarrow.fs.FSSpecHandler(storage.file_system)
        arguments["storage_filesystem"] = pyarrow.fs.PyFileSystem(handler)
    return arguments


@contextlib.contextmanager
def working_folder(storage: Storage, *continued: str) -> Iterator[Path]:
    """A local folder of the experiment's name: its own, or one whose files it gets at the end.

    Args:
        storage: of the experiment.
        continued: names of files that are written on, if they are there already.
    """
    if storage.local_path is not None:
        yield storage.local_path
        return
    prefix = "rl-service-tuning-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as parent:
        folder = Path(parent, Path(storage.root).name)
        folder.mkdir()
        names = [name for name in storage.names() if name in continued]
        for name, content in _read(storage, names).items():
            (folder / name).write_bytes(content)
        try:
            yield folder
        finally:
            _keep(storage, folder)


def _keep(storage: Storage, folder: Path) -> None:
    """Copies what is worth less than the experiment; one that was removed stays away."""
    try:
        if PLAN_FILE in storage.names():
            for path in folder.rglob("*"):
                if path.is_file():
                    storage.write(path.relative_to(folder).as_posix(), path.read_bytes())
    except OutputError as error:
        logger.warning("not kept: %s (%s)", ", ".join(sorted(os.listdir(folder))), error)


def back_up(storage: Storage) -> None:
    """Copies the newest snapshot, unless it is being written just now.

    Raises:
        OutputError: if the storage cannot be read or written.
    """
    snapshots = _snapshots(storage)
    if not snapshots:
        return
    newest = _read(storage, snapshots[max(snapshots)])
    if not _damaged(newest):
        for name, content in newest.items():
            storage.write(f"{BACKUP_FOLDER}/{name}", content)


def saved_trials(storage: Storage) -> set[str]:
    """Ids of the trials in the newest whole snapshot; none if there never was one.

    It becomes the newest of all, which is the one that Tune reads: what a kill or a full disk has
    left of it is replaced by its copy, and what is left of later ones goes.

    Raises:
        TuningError: if all are damaged.
    """
    own, copies = _snapshots(storage), _snapshots(storage, f"{BACKUP_FOLDER}/")
    starts = sorted({*own, *copies}, reverse=True)
    num_kinds = max(map(len, [*own.values(), *copies.values()]), default=0)
    damaged: list[str] = []
    for start in starts:
        for names in (own.get(start, []), copies.get(start, [])):
            files = _read(storage, names)
            damaged += _damaged(files)
            if len(files) == num_kinds and not _damaged(files):
                later = [name for other in own if other > start for name in own[other]]
                _make_newest(storage, files, later)
                return _trials(files)
    if not starts:
        return set()
    raise TuningError(
        f"{storage}/{damaged[0]} is damaged, and there is no copy of it; the trials' "
        f"checkpoints are whole, but the experiment cannot continue: start a new one"
    )


def _snapshots(storage: Storage, folder: str = "") -> dict[str, list[str]]:
    """Names of each one's files, by the time that they end with."""
    found = defaultdict(list)
    for name in storage.names(folder.rstrip("/")):
        for kind in _KINDS:
            if name.startswith(kind):
                found[Path(name).stem.removeprefix(kind)].append(f"{folder}{name}")
    return found


def _read(storage: Storage, names: list[str]) -> dict[str, bytes]:
    return dict(zip(names, storage.read(names), strict=True))


def _make_newest(storage: Storage, files: Mapping[str, bytes], later: list[str]) -> None:
    for name, content in files.items():
        if name.startswith(BACKUP_FOLDER):
            storage.write(Path(name).name, content)
    for name in later:
        storage.remove(name)


def _trials(files: Mapping[str, bytes]) -> set[str]:
    [state] = [content for name, content in files.items() if Path(name).name.startswith(STATE)]
    return {json.loads(trial)["trial_id"] for trial, _ in json.loads(state)["trial_data"]}


def _damaged(files: Mapping[str, bytes]) -> list[str]:
    return [name for name, content in files.items() if not _is_whole(name, content)]


def _is_whole(name: str, content: bytes) -> bool:
    if not Path(name).name.startswith(STATE):  # the others are pickles, whatever their names say
        return content.endswith(pickle.STOP)
    try:
        json.loads(content)
    except ValueError:
        return False
    return True
