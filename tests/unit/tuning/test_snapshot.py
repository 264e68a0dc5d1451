"""Which trials must come back when an experiment goes on, and what a kill may have left of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl_service.common.errors import TuningError
from rl_service.common.storage import Storage
from rl_service.tuning.storage import back_up, experiment_storage, saved_trials

STATE, SEARCHER = "experiment_state-2026-01-01.json", "searcher-state-2026-01-01.pkl"


def snapshots(storage: Storage) -> list[str]:
    return [name for name in storage.names() if "-2026-" in name]


def write(storage: Storage, *ids: str, day: int = 1) -> None:
    trials = [[json.dumps({"trial_id": name}), "{}"] for name in ids]
    storage.write(
        f"experiment_state-2026-01-0{day}.json", json.dumps({"trial_data": trials}).encode()
    )
    storage.write(f"searcher-state-2026-01-0{day}.pkl", b"whole.")


@pytest.fixture(params=["", "memory://"])
def storage(tmp_path: Path, request: pytest.FixtureRequest) -> Storage:
    return experiment_storage(f"{request.param}{tmp_path}/one")


def test_the_newest_snapshot_counts(storage: Storage) -> None:
    assert saved_trials(storage) == set()
    write(storage, "a")
    write(storage, "a", "b", day=2)
    assert saved_trials(storage) == {"a", "b"}


@pytest.mark.parametrize(("name", "left"), [(STATE, b""), (STATE, b'{"tr'), (SEARCHER, b"whol")])
def test_a_half_written_snapshot_is_replaced_by_its_copy(
    storage: Storage, name: str, left: bytes
) -> None:
    write(storage, "a")
    back_up(storage)
    write(storage, "a", "b")
    storage.write(name, left)
    back_up(storage)  # which does not copy what is damaged
    assert saved_trials(storage) == {"a"}
    assert saved_trials(storage) == {"a"}
    assert storage.read([SEARCHER]) == [b"whole."]


@pytest.mark.parametrize("left", [b"", b'{"tr'])
def test_a_first_snapshot_that_is_cut_short_leaves_that_of_the_process_before(
    storage: Storage, left: bytes
) -> None:
    write(storage, "a")
    back_up(storage)
    storage.write("experiment_state-2026-01-02.json", left)  # and the disk is full
    back_up(storage)
    assert saved_trials(storage) == {"a"}
    assert [name for name in storage.names() if "-2026-" in name] == [
        STATE,
        SEARCHER,
    ]  # Tune takes the newest of each


def test_it_is_found_in_the_copy_if_what_tune_wrote_over_is_cut_short_too(
    storage: Storage,
) -> None:
    write(storage, "a")
    back_up(storage)
    for name in (STATE, SEARCHER, "experiment_state-2026-01-02.json"):
        storage.write(name, b"")
    assert saved_trials(storage) == {"a"}
    assert storage.read([SEARCHER]) == [b"whole."]
    assert snapshots(storage) == [STATE, SEARCHER]


def test_a_later_process_s_copy_goes_before_an_earlier_snapshot(storage: Storage) -> None:
    write(storage, "a")
    write(storage, "a", "b", day=2)
    back_up(storage)
    storage.write("searcher-state-2026-01-02.pkl", b"who")
    assert saved_trials(storage) == {"a", "b"}
    assert storage.read(["searcher-state-2026-01-02.pkl"]) == [b"whole."]


def test_without_a_copy_it_is_not_taken_for_none(storage: Storage) -> None:
    write(storage, "a")
    storage.write(STATE, b"")
    with pytest.raises(TuningError, match=r"experiment_state-2026-01-01.json is damaged"):
        saved_trials(storage)
