"""Where experiments lie: folders, and what only fsspec reaches."""

from __future__ import annotations

from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from rl_service.common.errors import OutputError, SettingsError, TuningError
from rl_service.tuning.storage import PLAN_FILE, ExperimentStorage


@pytest.mark.parametrize("scheme", ["", "file://", "dir::file://", "memory://"])
def test_small_files_come_back(tmp_path: Path, scheme: str) -> None:
    parent = f"{scheme}{tmp_path}"
    made = ExperimentStorage.create(parent, "one")
    made.write(PLAN_FILE, "name: ä")
    report = tmp_path / "report"
    report.mkdir()
    (report / "table.csv").write_text("1", encoding="utf-8")
    made.put_folder(report, "report")
    found = ExperimentStorage.open(f"{parent}/one/")
    assert found.read(PLAN_FILE) == "name: ä"
    assert found.read("report/table.csv") == "1"
    assert found.is_local == (scheme in ("", "file://"))
    found.remove()
    with pytest.raises(TuningError, match=r"no tuning experiment .*one"):
        ExperimentStorage.open(f"{parent}/one")


ELSEWHERE = ["dir::file://", "memory://"]


@pytest.mark.parametrize("scheme", ["", *ELSEWHERE])
def test_what_is_written_beside_it_stays_also_after_an_error(tmp_path: Path, scheme: str) -> None:
    made = ExperimentStorage.create(f"{scheme}{tmp_path}", "one")
    made.write(PLAN_FILE, "")
    with made.working_folder("log.txt") as folder:
        assert folder.name == "one"
        (folder / "log.txt").write_text("first ")
        (folder / "trial_a/wandb").mkdir(parents=True)
        (folder / "trial_a/wandb/run").write_text("offline")
    with pytest.raises(ZeroDivisionError), made.working_folder("log.txt") as folder:
        with (folder / "log.txt").open("a") as log:
            log.write("second")
        raise ZeroDivisionError
    assert made.read("log.txt") == "first second"
    assert made.read("trial_a/wandb/run") == "offline"


@pytest.mark.parametrize("scheme", ELSEWHERE)
def test_a_log_does_not_bring_back_what_was_removed(tmp_path: Path, scheme: str) -> None:
    made = ExperimentStorage.create(f"{scheme}{tmp_path}", "one")
    made.write(PLAN_FILE, "")
    with made.working_folder() as folder:
        (folder / "log.txt").write_text("it cannot run here")
        made.remove()
    assert made.names("*") == []


def test_what_cannot_be_copied_is_told_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = ExperimentStorage.create(f"memory://{tmp_path}", "one")
    made.write(PLAN_FILE, "")

    def fail(*_: object) -> None:
        raise PermissionError("the key has expired")

    monkeypatch.setattr(MemoryFileSystem, "put_file", fail)
    with made.working_folder() as folder:
        (folder / "log.txt").write_text("x")
    assert "not kept: log.txt (memory://" in caplog.text
    assert "the key has expired" in caplog.text


@pytest.mark.parametrize("scheme", ["", *ELSEWHERE])
def test_the_name_of_a_folder_is_no_pattern(tmp_path: Path, scheme: str) -> None:
    made = ExperimentStorage.create(f"{scheme}{tmp_path}/sweep[1]*?", "one")
    for name in ("a-1.json", "a-2.json", "b-1.json", "copies/a-3.json"):
        made.write(name, "")
    assert made.names("a-*") == ["a-1.json", "a-2.json"]
    assert made.names("copies/a-*") == ["a-3.json"]
    assert made.names("none/a-*") == []


def test_an_experiment_is_found_by_its_name_under_runs(in_tmp_path: Path) -> None:
    made = ExperimentStorage.create("runs", "one")
    made.write(PLAN_FILE, "name: x")
    assert str(ExperimentStorage.open("one")) == str(in_tmp_path / "runs" / "one")


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"nosuch://bucket.*fsspec"):
        ExperimentStorage.create("nosuch://bucket", "one")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(OutputError, match="cannot write"):
        ExperimentStorage.create(str(tmp_path / "file"), "one")
