"""Saving, choosing and verifying checkpoints."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from rl_service.common.errors import CheckpointError
from rl_service.training.checkpoints import CheckpointStore


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", keep=2)


def save(store: CheckpointStore, iteration: int, text: str | None = None) -> Path:
    def write(folder: Path) -> None:
        (folder / "state.txt").write_text(text or f"state {iteration}")
        (folder / "optimizer").mkdir()
        (folder / "optimizer" / "moments.bin").write_bytes(bytes([iteration % 256]) * 100)

    return store.save(iteration, write)


def names(store: CheckpointStore) -> list[str]:
    return sorted(path.name for path in store.path.iterdir())


def test_a_store_without_checkpoints_has_no_latest(store: CheckpointStore) -> None:
    assert store.latest() is None


def test_what_was_saved_last_is_the_latest(store: CheckpointStore) -> None:
    save(store, 9)
    save(store, 10)
    latest = store.latest()
    assert latest == store.path / "iteration_000010"
    assert (latest / "state.txt").read_text() == "state 10"
    assert (latest / "optimizer" / "moments.bin").read_bytes() == bytes([10]) * 100


def test_the_manifest_lists_every_file_with_size_and_digest(store: CheckpointStore) -> None:
    manifest = json.loads((save(store, 3, "abc") / "manifest.json").read_text())
    assert (manifest["format_version"], manifest["iteration"]) == (1, 3)
    assert sorted(manifest["files"]) == ["optimizer/moments.bin", "state.txt"]
    assert manifest["files"]["state.txt"] == {
        "size_bytes": 3,
        "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    }


def test_only_the_newest_checkpoints_stay(store: CheckpointStore) -> None:
    for iteration in (5, 10, 15, 20):
        save(store, iteration)
    assert names(store) == ["iteration_000015", "iteration_000020"]


def test_a_second_save_of_an_iteration_is_the_latest(store: CheckpointStore) -> None:
    save(store, 10, "first")
    save(store, 10, "second")
    latest = store.latest()
    assert latest is not None
    assert (latest / "state.txt").read_text() == "second"


@pytest.mark.parametrize("iteration", [1_000_000, 9_999_999])
def test_checkpoints_are_ordered_by_number_not_by_name(
    store: CheckpointStore, iteration: int
) -> None:
    save(store, 999_999)
    assert save(store, iteration) == store.latest()


def test_an_exception_while_writing_leaves_nothing_behind(store: CheckpointStore) -> None:
    save(store, 1)

    def write(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.save(2, write)
    assert names(store) == ["iteration_000001"]


def damage(path: Path, how: str) -> None:
    state = path / "state.txt"
    if how == "truncated":
        state.write_text(state.read_text()[:-1])
    elif how == "changed":
        state.write_text(state.read_text().upper())
    elif how == "missing":
        state.unlink()
    elif how == "no manifest":
        (path / "manifest.json").unlink()
    elif how == "broken manifest":
        (path / "manifest.json").write_text('{"format_version": 1, "files": {"sta')
    elif how == "foreign manifest":
        (path / "manifest.json").write_text('["not", "ours"]')
    elif how == "empty manifest":
        (path / "manifest.json").write_text('{"format_version": 1, "iteration": 1}')


DAMAGES = {
    "truncated": "state.txt has 6 bytes instead of 7",
    "changed": "state.txt has changed",
    "missing": "state.txt is missing",
    "no manifest": "manifest.json is missing or unreadable",
    "broken manifest": "manifest.json is missing or unreadable",
    "foreign manifest": "manifest.json is missing or unreadable",
    "empty manifest": "manifest.json is missing or unreadable",
}


@pytest.mark.parametrize(("how", "message"), DAMAGES.items())
def test_damage_is_named_in_one_line(store: CheckpointStore, how: str, message: str) -> None:
    path = save(store, 1)
    damage(path, how)
    with pytest.raises(CheckpointError, match=message) as caught:
        store.verify(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_newest_checkpoint_gives_way_to_an_older_whole_one(
    store: CheckpointStore, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    older = save(store, 1)
    damage(save(store, 2), how)
    with caplog.at_level(logging.WARNING):
        assert store.latest() == older
    assert "continuing from iteration_000001" in caplog.text


def test_without_any_whole_checkpoint_the_newest_damage_is_an_error(store: CheckpointStore) -> None:
    damage(save(store, 1), "missing")
    damage(save(store, 2), "truncated")
    with pytest.raises(CheckpointError, match="iteration_000002 is damaged"):
        store.latest()


def test_a_manifest_of_another_format_is_refused_by_its_number(store: CheckpointStore) -> None:
    path = save(store, 1)
    manifest = json.loads((path / "manifest.json").read_text()) | {"format_version": 2}
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="format version 2 and this release reads 1"):
        store.verify(path)


def test_saving_after_a_resume_removes_the_damaged_checkpoints_it_went_back_from(
    tmp_path: Path,
) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    save(store, 10)
    CheckpointStore(tmp_path, keep=2).save(20, lambda folder: None)
    (tmp_path / "iteration_000020" / "manifest.json").unlink()
    saved = save(store, 15)
    assert names(store) == ["iteration_000015"]
    assert store.latest() == saved


def test_folders_of_others_are_neither_read_nor_removed(store: CheckpointStore) -> None:
    save(store, 1)
    (store.path / "notes").mkdir()
    (store.path / "iteration_x").mkdir()
    save(store, 2)
    save(store, 3)
    assert names(store) == ["iteration_000002", "iteration_000003", "iteration_x", "notes"]
