"""Where experiments lie: folders, and what only fsspec reaches."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_service.errors import OutputError, SettingsError, TuningError
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
