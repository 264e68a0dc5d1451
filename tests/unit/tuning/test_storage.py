"""Where experiments lie, here and elsewhere; which trials must come back, whatever a kill left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from rl_service.common.errors import OutputError, SettingsError, TuningError
from rl_service.common.storage import Storage
from rl_service.tuning.storage import (
    PLAN_FILE,
    back_up,
    experiment_storage,
    find_experiment,
    saved_trials,
    working_folder,
)

ELSEWHERE = ["dir::file://", "memory://"]


def new(parent: object) -> Storage:
    storage = experiment_storage(f"{parent}/one")
    storage.write(PLAN_FILE, "name: ä".encode())
    return storage


@pytest.mark.parametrize("scheme", ["", "file://", *ELSEWHERE])
def test_an_experiment_is_found_until_it_is_removed(tmp_path: Path, scheme: str) -> None:
    parent = f"{scheme}{tmp_path}"
    new(parent).write("report/table.csv", b"1")
    found = find_experiment(f"{parent}/one/")
    assert found.read([PLAN_FILE, "report/table.csv"]) == ["name: ä".encode(), b"1"]
    assert (found.local_path is not None) == (scheme in ("", "file://"))
    found.remove()
    with pytest.raises(TuningError, match=r"no tuning experiment .*one"):
        find_experiment(f"{parent}/one")


@pytest.mark.parametrize("scheme", ["", *ELSEWHERE])
def test_what_is_written_beside_it_stays_also_after_an_error(tmp_path: Path, scheme: str) -> None:
    made = new(f"{scheme}{tmp_path}")
    with working_folder(made, "log.txt") as folder:
        assert folder.name == "one"
        (folder / "log.txt").write_text("first ")
        (folder / "trial_a/wandb").mkdir(parents=True)
        (folder / "trial_a/wandb/run").write_text("offline")
    with pytest.raises(ZeroDivisionError), working_folder(made, "log.txt") as folder:
        with (folder / "log.txt").open("a") as log:
            log.write("second")
        raise ZeroDivisionError
    assert made.read(["log.txt", "trial_a/wandb/run"]) == [b"first second", b"offline"]


@pytest.mark.parametrize("scheme", ELSEWHERE)
def test_a_log_does_not_bring_back_what_was_removed(tmp_path: Path, scheme: str) -> None:
    made = new(f"{scheme}{tmp_path}")
    with working_folder(made) as folder:
        (folder / "log.txt").write_text("it cannot run here")
        made.remove()
    assert made.names() == []


def test_what_cannot_be_copied_is_told_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = new(f"memory://{tmp_path}")

    def fail(*_: object) -> None:
        raise PermissionError("the key has expired")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", fail)
    with working_folder(made) as folder:
        (folder / "log.txt").write_text("x")
    assert "not kept: log.txt (cannot write memory://" in caplog.text
    assert "the key has expired" in caplog.text


def test_an_experiment_is_found_by_its_name_under_runs(in_tmp_path: Path) -> None:
    new("runs")
    assert str(find_experiment("one")) == str(in_tmp_path / "runs" / "one")


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"nosuch://bucket.*fsspec"):
        experiment_storage("nosuch://bucket/one")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(OutputError, match="cannot write"):
        new(tmp_path / "file")


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
