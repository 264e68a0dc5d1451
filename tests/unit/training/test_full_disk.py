"""A full disk while saving: one clear line, the previous checkpoint intact, no leftovers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rl_service.algorithms.state import write_state
from rl_service.common.errors import OutputError
from rl_service.common.files import write_atomic
from rl_service.common.metrics import METRICS
from rl_service.training.checkpoints import CheckpointStore
from rl_service.training.progress_file import ProgressFile

DISK_BYTES = 256 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted without root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def write_bytes(folder: Path) -> None:
    (folder / "state.bin").write_bytes(bytes(2 * DISK_BYTES))


def write_training_state(folder: Path) -> None:
    write_state(folder, {"learner": {"weights": torch.zeros(DISK_BYTES)}})


def write_tensors(folder: Path) -> None:
    save_file({"weights": torch.zeros(DISK_BYTES)}, folder / "state.safetensors")


@pytest.mark.parametrize("write", [write_bytes, write_training_state, write_tensors])
def test_a_disk_that_fills_up_keeps_the_previous_checkpoint(
    small_disk: Path, write: Callable[[Path], None]
) -> None:
    store = CheckpointStore(small_disk / "checkpoints", keep=2)
    saved = store.save(1, lambda folder: None)
    with pytest.raises(OutputError, match="the disk is full; free some space") as caught:
        store.save(2, write)
    assert "\n" not in str(caught.value)
    assert store.latest() == saved
    assert list(store.path.iterdir()) == [saved]


def test_a_disk_that_fills_up_keeps_the_file_that_was_to_be_replaced(small_disk: Path) -> None:
    path = small_disk / "config.yaml"
    write_atomic(path, "seed: 1\n")
    with pytest.raises(OutputError, match="the disk is full"):
        write_atomic(path, "x" * 2 * DISK_BYTES)
    assert path.read_text() == "seed: 1\n"
    assert list(small_disk.iterdir()) == [path]


def test_a_disk_that_fills_up_keeps_the_rows_of_progress(small_disk: Path) -> None:
    progress = ProgressFile(small_disk / "progress.jsonl")
    row = dict.fromkeys(METRICS, 1.5)
    num_rows = 0
    with pytest.raises(OutputError, match=r"progress\.jsonl: the disk is full"):
        while True:
            progress.append(row)
            num_rows += 1
    assert progress.read() == [row] * num_rows
    assert progress.path.read_bytes().endswith(b"}\n")


SAVE_OVER_THE_LIMIT = """
import resource, sys, torch
from pathlib import Path
from safetensors.torch import save_file
from rl_service.common.errors import OutputError
from rl_service.training.checkpoints import CheckpointStore

store = CheckpointStore(Path(sys.argv[1]), keep=2)
saved = store.save(1, lambda folder: None)
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
writers = [
    lambda folder: (folder / "state.bin").write_bytes(bytes(100_000)),
    lambda folder: save_file({"w": torch.zeros(100_000)}, folder / "state.safetensors"),
]
for write in writers:
    try:
        store.save(2, write)
    except OutputError as error:
        print(error)
assert store.latest() == saved and list(store.path.iterdir()) == [saved]
"""


def test_a_file_size_limit_is_reported_like_a_full_disk(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SAVE_OVER_THE_LIMIT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith(f"cannot write {tmp_path}")
        assert "free some space" in line


def test_a_folder_that_cannot_be_made_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = CheckpointStore(tmp_path / "file" / "checkpoints", keep=2)
    with pytest.raises(OutputError, match="not a directory; choose another output folder"):
        store.save(1, lambda folder: None)
