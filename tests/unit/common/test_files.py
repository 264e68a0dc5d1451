"""A folder is replaced as a whole or not at all."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rl_service.common import files
from rl_service.common.errors import OutputError
from rl_service.common.files import replacing_folder


def write(path: Path, text: str) -> None:
    with replacing_folder(path) as folder:
        (folder / "file").write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b", "one")
    assert (tmp_path / "a" / "b" / "file").read_text() == "one"
    assert names(tmp_path / "a") == ["b"]


def test_the_new_folder_takes_the_place_of_the_old_and_leaves_nothing_beside_it(
    tmp_path: Path,
) -> None:
    write(tmp_path / "b", "one")
    (tmp_path / "b" / "stale").touch()
    write(tmp_path / "b", "two")
    assert names(tmp_path) == ["b"]
    assert names(tmp_path / "b") == ["file"]
    assert (tmp_path / "b" / "file").read_text() == "two"


def test_it_also_works_where_folders_cannot_be_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_exchange", lambda first, second: False)
    write(tmp_path / "b", "one")
    write(tmp_path / "b", "two")
    assert names(tmp_path) == ["b"]
    assert (tmp_path / "b" / "file").read_text() == "two"


def test_a_failed_write_keeps_the_old_folder_and_no_leftovers(tmp_path: Path) -> None:
    write(tmp_path / "b", "one")
    with pytest.raises(OutputError, match="disk is full"), replacing_folder(tmp_path / "b"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert names(tmp_path) == ["b"]
    assert (tmp_path / "b" / "file").read_text() == "one"


def test_what_a_kill_left_behind_is_cleared_by_the_next_write(tmp_path: Path) -> None:
    target = tmp_path / "b"
    write(target, "one")
    script = (
        "import os, sys, pathlib\n"
        "from rl_service.common.files import replacing_folder\n"
        "with replacing_folder(pathlib.Path(sys.argv[1])) as folder:\n"
        "    (folder / 'half').touch()\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(target)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (target / "file").read_text() == "one"
    write(target, "two")
    assert names(tmp_path) == ["b"]
    assert names(target) == ["file"]
