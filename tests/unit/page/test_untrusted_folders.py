"""Damaged, foreign and hostile files in an output folder; names that lead out of it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from rl_service.common.metrics import ENV_STEPS
from rl_service.page.experiments import _number
from rl_service.page.library import RunLibrary
from rl_service.page.progress import RETURN
from tests.unit.page.conftest import WriteRun, curve, run_id


@pytest.mark.parametrize(
    "text",
    ["{\n", "[1]\n", "\n", "\xff\n", "[" * 100_000 + "\n", '{"a": ' + "9" * 5000 + "}\n"],
)
def test_damaged_progress_does_not_break_the_list(
    library: RunLibrary, write_run: WriteRun, text: str
) -> None:
    whole, damaged = write_run(1.0), write_run(1.0, seed=1)
    with (damaged.path / "progress.jsonl").open("a", encoding="latin-1") as file:
        file.write(text)
    assert [run["id"] for run in library.runs()["runs"]] == [run_id(whole)]
    found = library.curves([run_id(whole), run_id(damaged)], RETURN, "steps", 400)
    assert found["left_out"] == [run_id(damaged)]


def test_a_score_beyond_all_numbers_is_missing() -> None:
    assert [_number(value) for value in (10**400, True, 2)] == [None, None, 2]


def test_values_that_are_no_finite_numbers_are_missing(
    library: RunLibrary, write_run: WriteRun
) -> None:
    run = write_run(1.0)
    with (run.path / "progress.jsonl").open("a", encoding="utf-8") as file:
        for i, value in enumerate(("NaN", "1e999", '"2"', "[2]", "9" * 400, "4"), start=2):
            file.write(f'{{"{ENV_STEPS}": {100 * i}, "{RETURN}": {value}, "other": 1}}\n')
    assert curve(library, run) == ([100, 700], [1, 4])
    json.dumps(library.runs(), allow_nan=False)


def test_foreign_folders_and_files_are_left_out(
    library: RunLibrary, write_run: WriteRun, tmp_path: Path
) -> None:
    run = write_run(1.0)
    parent = run.path.parent
    for name, config in (("a", "{"), ("b", "model: {name: of_tomorrow}"), ("c", "- 1")):
        (parent / name).mkdir()
        (parent / name / "config.yaml").write_text(config)
    (parent / "d" / "config.yaml").mkdir(parents=True)
    (parent / "e").mkdir()
    os.mkfifo(parent / "e" / "config.yaml")
    shutil.copytree(run.path, parent / "f")
    (parent / "f" / "progress.jsonl").unlink()
    os.mkfifo(parent / "f" / "progress.jsonl")
    (parent / "file").touch()
    (tmp_path / "runs" / "g").mkdir()
    (tmp_path / "runs" / "g" / "tuning.yaml").write_text("search_space: [1]")
    shutil.copytree(run.path, parent / "h")
    (parent / "h" / "progress.jsonl").unlink()
    assert {each["id"] for each in library.runs()["runs"]} == {run_id(run), "test/f", "test/h"}
    assert library.experiments() == {"experiments": []}
    assert library.curves(["test/a"], RETURN, "steps", 400)["left_out"] == ["test/a"]
    with pytest.raises(LookupError, match="no tuning experiment 'g' can be read"):
        library.experiment("g")


@pytest.mark.parametrize(
    "reference",
    ["none", "test/none", "../x", "test/..", "test/../test", "/", "", "a\0/b", "x/" + "y" * 300],
)
def test_what_is_no_run_is_not_found(
    library: RunLibrary, write_run: WriteRun, reference: str
) -> None:
    write_run(1.0)
    with pytest.raises(LookupError, match=r"^no run '.*'$"):
        library.curves([reference], RETURN, "steps", 400)
    with pytest.raises(LookupError, match=r"^no tuning experiment '.*' can be read$"):
        library.experiment(reference)


def test_no_name_leads_out_of_the_folder(write_run: WriteRun, tmp_path: Path) -> None:
    run = write_run(1.0)
    inside = tmp_path / "inside"
    (inside / "runs" / "real").mkdir(parents=True)
    (inside / "runs" / "link").symlink_to(run.path.parent)
    (inside / "runs" / "real" / "link").symlink_to(run.path)
    (inside / "runs" / "real" / "files").mkdir()
    for file in run.path.iterdir():
        (inside / "runs" / "real" / "files" / file.name).symlink_to(file)
    library = RunLibrary(inside)
    assert library.runs() == {"runs": []}
    for reference in (
        *(f"link/{run.run_id}", "real/link", "real/files", f"../../runs/test/{run.run_id}"),
        str(run.path),
    ):
        with pytest.raises(LookupError, match="no run"):
            library.curves([reference], RETURN, "steps", 400)
