"""Which trials must come back when an experiment goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl_service.errors import TuningError
from rl_service.tuning.snapshot import saved_trials
from rl_service.tuning.storage import ExperimentStorage


def test_the_newest_snapshot_counts(tmp_path: Path) -> None:
    storage = ExperimentStorage.create(str(tmp_path), "one")
    assert saved_trials(storage) == set()
    for day, ids in ((1, ["a"]), (2, ["a", "b"])):
        trials = [[json.dumps({"trial_id": name}), "{}"] for name in ids]
        storage.write(f"experiment_state-2026-01-0{day}.json", json.dumps({"trial_data": trials}))
    assert saved_trials(storage) == {"a", "b"}


@pytest.mark.parametrize(
    "text", ["", "{", "{}", '{"trial_data": [1]}', '{"trial_data": [["{", ""]]}']
)
def test_a_damaged_snapshot_is_not_taken_for_none(tmp_path: Path, text: str) -> None:
    storage = ExperimentStorage.create(str(tmp_path), "one")
    storage.write("experiment_state-2026-01-01.json", text)
    with pytest.raises(TuningError, match=r"experiment_state-2026-01-01.json is damaged"):
        saved_trials(storage)
