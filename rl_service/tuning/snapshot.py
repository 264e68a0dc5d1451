"""What Ray Tune has saved of an experiment, and a second copy of it.

Tune writes over its only snapshot, and starts an experiment all over, without a word, if it cannot
read it. So whole snapshots are copied as the experiment goes on, and the trials that must come
back are read here before Tune is asked.
"""

from __future__ import annotations

import json
import pickle

from rl_service.errors import TuningError
from rl_service.tuning.storage import ExperimentStorage

BACKUP_FOLDER = "snapshot"
_STATE = "experiment_state-*.json"
_FILES = (_STATE, "search_gen_state-*.json", "searcher-state-*.pkl", "callback-states-*.pkl")


def back_up(storage: ExperimentStorage) -> None:
    """Copies the newest snapshot, unless it is being written just now."""
    newest = _newest(storage)
    if newest and all(_is_whole(name, content) for name, content in newest.items()):
        for name, content in newest.items():
            storage.write(f"{BACKUP_FOLDER}/{name}", content)


def saved_trials(storage: ExperimentStorage) -> set[str]:
    """Ids of the trials in the newest snapshot; none if the experiment was killed before its first.

    A snapshot that a kill has left half written is replaced by the copy.

    Raises:
        TuningError: if both are damaged.
    """
    newest = _newest(storage)
    if not newest:
        return set()
    if not all(_is_whole(name, content) for name, content in newest.items()):
        newest = _restore(storage, newest)
    [state] = [content for name, content in newest.items() if name.startswith("experiment_state")]
    return {json.loads(trial)["trial_id"] for trial, _ in json.loads(state)["trial_data"]}


def _newest(storage: ExperimentStorage) -> dict[str, bytes]:
    """Content of the newest file of each kind; their names end with the time of the start."""
    names = [max(found) for pattern in _FILES if (found := storage.names(pattern))]
    return {name: storage.read_bytes(name) for name in names}


def _restore(storage: ExperimentStorage, damaged: dict[str, bytes]) -> dict[str, bytes]:
    copies = {
        name: storage.read_bytes(f"{BACKUP_FOLDER}/{name}")
        for name in damaged
        if storage.names(f"{BACKUP_FOLDER}/{name}")
    }
    if copies.keys() != damaged.keys():
        broken = [name for name, content in damaged.items() if not _is_whole(name, content)]
        raise TuningError(
            f"{storage}/{broken[0]} is damaged, and there is no copy of it; the trials' "
            f"checkpoints are whole, but the experiment cannot go on: start a new one"
        )
    for name, content in copies.items():
        storage.write(name, content)
    return copies


def _is_whole(name: str, content: bytes) -> bool:
    if not name.startswith("experiment_state"):  # the others are pickles, whatever their names say
        return content.endswith(pickle.STOP)
    try:
        json.loads(content)
    except ValueError:
        return False
    return True
