"""Where experiments lie: folders, and what only fsspec reaches."""

from __future__ import annotations

from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from rl_service.common.errors import OutputError, SettingsError, TuningError
from rl_service.common.storage import Storage
from rl_service.tuning.storage import (
    PLAN_FILE,
    experiment_storage,
    find_experiment,
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
