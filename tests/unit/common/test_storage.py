"""Small files and folders below a root: here, and what only fsspec reaches."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_service.common.errors import OutputError, RLServiceError
from rl_service.common.storage import Storage, open_storage


def failure(what: str, reason: str) -> RLServiceError:
    return OutputError(f"cannot {what}: {reason}")


SCHEMES = ["", "file://", "dir::file://", "memory://"]


@pytest.fixture(params=SCHEMES)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """Below a folder whose name would be a pattern to glob."""
    return open_storage(f"{request.param}{tmp_path}/sweep[1]*?", failure)


def test_a_file_is_written_over_and_created_once(storage: Storage) -> None:
    storage.write("a/b/file", b"one")
    storage.write("a/b/file", b"two")
    assert not storage.create("a/b/file", b"three")
    assert storage.create("a/other", b"four")
    assert storage.read(["a/b/file", "a/other"]) == [b"two", b"four"]
    assert storage.read([]) == []


def test_names_are_those_of_a_folder(storage: Storage) -> None:
    for name in ("b", "a", "copies/c"):
        storage.write(name, b"")
    assert storage.names() == ["a", "b", "copies"]
    assert storage.names("copies") == ["c"]
    assert storage.names("none") == []


def test_files_and_folders_are_removed_if_they_are_there(storage: Storage) -> None:
    for name in ("a", "folder/b", "folder/c"):
        storage.write(name, b"")
    storage.remove("a")
    storage.remove("a")
    storage.remove("folder/b")
    assert (storage.names(), storage.names("folder")) == (["folder"], ["c"])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_root_is_removed_with_all_that_is_in_it(tmp_path: Path, scheme: str) -> None:
    storage = open_storage(f"{scheme}{tmp_path}/root", failure)
    storage.remove()
    storage.write("folder/file", b"")
    storage.remove()
    assert storage.names() == []


def test_a_folder_is_put_and_repaired(storage: Storage) -> None:
    def fill(folder: Path) -> None:
        (folder / "a").write_bytes(b"whole")

    def is_whole(folder: Path) -> bool:
        return folder.is_dir() and (folder / "a").read_bytes() == b"whole"

    storage.put_folder("x/y", fill, is_whole)
    storage.write("x/y/a", b"half")
    storage.put_folder("x/y", fill, is_whole)
    assert storage.read(["x/y/a"]) == [b"whole"]
    assert (storage.names("x"), storage.names("x/y")) == (["y"], ["a"])


def test_a_root_is_named_as_it_was_given() -> None:
    root = open_storage("memory://", failure).root
    assert open_storage(root, failure).local_path is None


def test_an_error_has_one_line_and_the_caller_s_words(storage: Storage) -> None:
    with pytest.raises(OutputError, match=r"^cannot read: [^\n]+$"):
        storage.read(["missing"])
    with pytest.raises(OutputError, match=r"^cannot reach: Protocol not known: nosuch"):
        open_storage("nosuch://bucket", failure)
