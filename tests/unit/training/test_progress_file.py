"""`progress.jsonl`: appended row by row, readable at any moment."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from rl_service.common.errors import CheckpointError
from rl_service.training.progress_file import ProgressFile


@pytest.fixture
def progress(tmp_path: Path) -> ProgressFile:
    return ProgressFile(tmp_path / "progress.jsonl")


def rows(*iterations: int) -> list[dict[str, int]]:
    return [{"training_iteration": iteration} for iteration in iterations]


def test_there_are_no_rows_before_the_first(progress: ProgressFile) -> None:
    assert progress.read() == []


def test_rows_come_back_in_order(progress: ProgressFile) -> None:
    for row in rows(1, 2, 3):
        progress.append(row)
    assert progress.read() == rows(1, 2, 3)


def test_numbers_without_a_value_become_null(progress: ProgressFile) -> None:
    progress.append({"entropy": math.nan, "policy_loss": -math.inf, "vf_loss": np.float32(0.5)})
    assert progress.path.read_text() == '{"entropy": null, "policy_loss": null, "vf_loss": 0.5}\n'


def test_an_unknown_key_is_refused_before_anything_is_written(progress: ProgressFile) -> None:
    with pytest.raises(ValueError, match="unknown metric 'polcy_loss'; did you mean 'policy_loss'"):
        progress.append({"polcy_loss": 1.0})
    assert not progress.path.exists()


def test_a_line_that_a_kill_left_unfinished_is_ignored_and_replaced(progress: ProgressFile) -> None:
    progress.append(rows(1)[0])
    with progress.path.open("a") as file:
        file.write('{"training_iter')
    assert progress.read() == rows(1)
    progress.append(rows(2)[0])
    assert [json.loads(line) for line in progress.path.read_text().splitlines()] == rows(1, 2)


def test_the_last_row_is_completed_later(progress: ProgressFile) -> None:
    for row in rows(1, 2):
        progress.append(row)
    progress.complete({"entropy": 0.5})
    assert progress.read() == [*rows(1), {"training_iteration": 2, "entropy": 0.5}]
    with pytest.raises(ValueError, match="unknown metric 'polcy_loss'"):
        progress.complete({"polcy_loss": 1.0})


def test_rewinding_drops_the_rows_after_an_iteration(progress: ProgressFile) -> None:
    for row in rows(1, 2, 3, 4):
        progress.append(row)
    progress.rewind(2)
    assert progress.read() == rows(1, 2)
    progress.append(rows(3)[0])
    assert progress.read() == rows(1, 2, 3)


def test_rewinding_to_the_start_leaves_no_rows(progress: ProgressFile) -> None:
    progress.append(rows(1)[0])
    progress.rewind(0)
    assert progress.read() == []


def test_a_damaged_line_is_named_by_its_number(progress: ProgressFile) -> None:
    progress.path.write_text('{"training_iteration": 1}\n{"training_it\n')
    with pytest.raises(CheckpointError, match=r"progress\.jsonl line 2 is not a JSON object"):
        progress.read()
