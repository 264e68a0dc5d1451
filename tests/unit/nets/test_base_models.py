"""Base models are found by folder or by name, and told apart by what is in their files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from custom_models.base_models import (
    KNOWN,
    STORE_VARIABLE,
    find_model,
    fingerprint,
    store_folder,
    stored_names,
)
from rl_service.policies.base_model_fetch import CATALOGUE

ROOT = Path(__file__).parents[3]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "store"


def make_model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(1000))
    (folder / "tokenizer.json").write_text("[]")
    return folder


def refusal(name: str) -> str:
    with pytest.raises(FileNotFoundError) as caught:
        find_model(name)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_the_store_is_in_the_cache_of_the_user_unless_the_variable_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(STORE_VARIABLE, raising=False)
    assert store_folder() == tmp_path / ".cache/rl-service/models"
    monkeypatch.setenv(STORE_VARIABLE, "~/mine")
    assert store_folder() == tmp_path / "mine"


def test_a_model_is_found_by_its_folder_and_by_its_name_in_the_store(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, own = make_model(store / "smollm2-135m"), make_model(store.parent / "own")
    assert find_model("smollm2-135m") == stored
    assert find_model(str(own)) == own
    assert find_model("own") == Path("own")
    monkeypatch.setenv("HOME", str(store.parent))
    assert find_model("~/own") == own


def test_a_folder_wins_over_a_name_in_the_store_only_if_it_is_a_model(store: Path) -> None:
    stored = make_model(store / "twice")
    Path("twice").mkdir()
    assert find_model("twice") == stored
    Path("twice/config.json").write_text("{}")
    assert find_model("twice") == Path("twice")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("smollm2-135m", ["no base model smollm2-135m", "run `rl-service models fetch smollm2"]),
        ("SmolLM2-135", ["did you mean smollm2-135m?", "`rl-service models fetch smollm2-135m`"]),
        ("min", ["nor in the store", "did you mean mine?"]),
        ("llama", ["give a folder with a config.json", "gpt2-tokenizer, mine, smollm2-135m"]),
        ("empty", ["that folder has no config.json"]),
        ("~nobody-of-that-name/model", ["neither a folder"]),
        ("", ["no base model"]),
        ("../store/mine/..", ["no base model"]),
    ],
)
def test_what_is_not_found_is_told_in_one_line(store: Path, name: str, parts: list[str]) -> None:
    make_model(store / "mine")
    Path("empty").mkdir()
    text = refusal(name)
    for part in parts:
        assert part in text


def test_a_folder_that_is_being_fetched_is_no_model(store: Path) -> None:
    make_model(store / ".gpt2-tokenizer.fetching")
    make_model(store / "mine")
    assert stored_names() == ["mine"]
    refusal(".gpt2-tokenizer.fetching")


def test_a_store_that_does_not_exist_is_empty(store: Path) -> None:
    assert stored_names() == []


def test_the_fingerprint_is_that_of_names_sizes_and_contents(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    expected = hashlib.sha256(
        b"config.json\x002\x00{}" + b"model.safetensors\x001000\x00" + bytes(1000)
        + b"tokenizer.json\x002\x00[]"
    )  # fmt: skip
    assert fingerprint(folder) == expected.hexdigest()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_another_byte_is_another_fingerprint(tmp_path: Path, name: str) -> None:
    folder = make_model(tmp_path / "model")
    before = fingerprint(folder)
    path = folder / name
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    os.utime(path, ns=(0, 1))  # a file system's clock may be too coarse to tell
    assert fingerprint(folder) != before


def test_another_file_counts_only_if_the_model_reads_it(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    before = fingerprint(folder)
    (folder / "SOURCE.md").write_text("text")
    assert fingerprint(folder) == before
    (folder / "merges.txt").write_text("a b")
    assert fingerprint(folder) != before


def test_a_copy_elsewhere_has_the_same_fingerprint(tmp_path: Path) -> None:
    first, second = make_model(tmp_path / "first"), make_model(tmp_path / "second")
    assert fingerprint(first) == fingerprint(second)


def test_unchanged_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_model(tmp_path / "model")
    before = fingerprint(folder)
    monkeypatch.setattr(Path, "open", None)
    assert fingerprint(folder) == before


def test_the_names_that_can_be_fetched_are_those_of_the_catalogue() -> None:
    assert tuple(CATALOGUE) == KNOWN
