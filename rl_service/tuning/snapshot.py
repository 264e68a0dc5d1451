"""What Ray Tune has saved of an experiment, and a second copy of it.

Tune writes over its only snapshot, and starts an experiment all over, without a word, if it cannot
read it. So whole snapshots are copied as the experiment goes on, and the trials that must come
back are read here before Tune is asked.

A snapshot is some files whose names end with the time at which their process started: one that
goes on with an experiment begins a snapshot of its own, beside those before it.
"""

from __future__ import annotations

import json
import pickle
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from rl_service.common.errors import TuningError
from rl_service.tuning.storage import ExperimentStorage

BACKUP_FOLDER = "snapshot"
_STATE = "experiment_state"
_KINDS = (_STATE, "search_gen_state", "searcher-state", "callback-states")


def back_up(storage: ExperimentStorage) -> None:
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


def saved_trials(storage: ExperimentStorage) -> set[str]:
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
        f"checkpoints are whole, but the experiment cannot go on: start a new one"
    )


def _snapshots(storage: ExperimentStorage, folder: str = "") -> dict[str, list[str]]:
    """Names of each one's files, by the time that they end with."""
    found = defaultdict(list)
    for kind in _KINDS:
        for name in storage.names(f"{folder}{kind}-*"):
            found[Path(name).stem.removeprefix(f"{kind}-")].append(f"{folder}{name}")
    return found


def _read(storage: ExperimentStorage, names: list[str]) -> dict[str, bytes]:
    return {name: storage.read_bytes(name) for name in names}


def _make_newest(storage: ExperimentStorage, files: Mapping[str, bytes], later: list[str]) -> None:
    for name, content in files.items():
        if name.startswith(BACKUP_FOLDER):
            storage.write(Path(name).name, content)
    for name in later:
        storage.remove_file(name)


def _trials(files: Mapping[str, bytes]) -> set[str]:
    [state] = [content for name, content in files.items() if Path(name).name.startswith(_STATE)]
    return {json.loads(trial)["trial_id"] for trial, _ in json.loads(state)["trial_data"]}


def _damaged(files: Mapping[str, bytes]) -> list[str]:
    return [name for name, content in files.items() if not _is_whole(name, content)]


def _is_whole(name: str, content: bytes) -> bool:
    if not Path(name).name.startswith(_STATE):  # the others are pickles, whatever their names say
        return content.endswith(pickle.STOP)
    try:
        json.loads(content)
    except ValueError:
        return False
    return True
