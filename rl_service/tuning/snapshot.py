"""What Ray Tune has saved of an experiment.

Tune starts an experiment all over, without a word, if it cannot read what it has saved. So the
trials that must come back are read here first.
"""

from __future__ import annotations

import json

from rl_service.errors import TuningError
from rl_service.tuning.storage import ExperimentStorage

_PATTERN = "experiment_state-*.json"


def saved_trials(storage: ExperimentStorage) -> set[str]:
    """Ids of the trials in the newest snapshot; none if the experiment was killed before its first.

    Raises:
        TuningError: if the snapshot is damaged.
    """
    names = sorted(storage.names(_PATTERN))  # they end with the time of the start
    if not names:
        return set()
    try:
        content = json.loads(storage.read(names[-1]))
        return {json.loads(trial)["trial_id"] for trial, _ in content["trial_data"]}
    except (ValueError, KeyError, TypeError) as error:
        raise TuningError(
            f"{storage}/{names[-1]} is damaged; the trials' checkpoints beside it are whole, but "
            f"the experiment cannot go on: start a new one"
        ) from error
