"""The console shows our own lines alone; everything else goes to the log file."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from rl_service.common.errors import OutputError
from rl_service.training.capture import captured_output

PROGRAM = """
import os, subprocess, sys, logging
from pathlib import Path
from rl_service.training.capture import captured_output

print("before")
logging.basicConfig(stream=sys.stderr)
with captured_output(Path(sys.argv[1])) as (out, err):
    print("python out")
    print("python err", file=sys.stderr)
    logging.warning("logged")
    os.write(1, b"descriptor out\\n")
    os.write(2, b"descriptor err\\n")
    subprocess.run(["sh", "-c", "echo child out; echo child err >&2"], check=True)
    print(f"ours, terminal: {out.isatty()}", file=out)
    print(f"ours too, terminal: {err.isatty()}", file=err)
    print("return \\u00b1", file=out)
    if len(sys.argv) > 2:
        raise SystemExit("failed")
print("after")
print("after err", file=sys.stderr)
"""
CAPTURED = [
    "python out",
    "python err",
    "WARNING:root:logged",
    "descriptor out",
    "descriptor err",
    "child out",
    "child err",
]


def run_program(log: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(log), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"} | environment,
    )


def test_only_our_own_lines_reach_the_console(tmp_path: Path) -> None:
    done = run_program(tmp_path / "log.txt")
    assert done.stdout == "before\nours, terminal: False\nreturn ±\nafter\n"
    assert done.stderr == "ours too, terminal: False\nafter err\n"
    assert (tmp_path / "log.txt").read_text().splitlines() == CAPTURED


def test_the_log_is_continued_by_a_second_run(tmp_path: Path) -> None:
    run_program(tmp_path / "log.txt")
    run_program(tmp_path / "log.txt")
    assert (tmp_path / "log.txt").read_text().splitlines() == CAPTURED * 2


def test_the_console_is_restored_after_an_exception(tmp_path: Path) -> None:
    done = run_program(tmp_path / "log.txt", "fail")
    assert done.returncode == 1
    assert done.stderr == "ours too, terminal: False\nfailed\n"


def test_a_console_that_lacks_a_character_shows_a_question_mark(tmp_path: Path) -> None:
    done = run_program(tmp_path / "log.txt", PYTHONIOENCODING="ascii")
    assert "return ?\n" in done.stdout


def test_a_terminal_is_still_seen_as_one(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "log.txt")]
    subprocess.run(command, stdout=follower, stderr=subprocess.DEVNULL, check=True)
    os.close(follower)
    assert b"ours, terminal: True" in os.read(leader, 4096)
    os.close(leader)


def test_the_descriptors_are_those_of_before_at_the_end(tmp_path: Path) -> None:
    before = [os.fstat(descriptor) for descriptor in (1, 2)]
    num_open = len(os.listdir("/proc/self/fd"))
    with captured_output(tmp_path / "log.txt"):
        assert os.fstat(1).st_ino == (tmp_path / "log.txt").stat().st_ino
    assert [os.fstat(descriptor) for descriptor in (1, 2)] == before
    assert len(os.listdir("/proc/self/fd")) == num_open


def test_a_library_that_kept_the_stream_can_write_to_it_later(tmp_path: Path) -> None:
    program = (
        "import logging, sys\n"
        "from pathlib import Path\n"
        "from rl_service.training.capture import captured_output\n"
        "for name in ('first', 'second'):\n"
        "    with captured_output(Path(sys.argv[1], name)):\n"
        "        logging.basicConfig()\n"
        "        logging.warning(name)\n"
        "logging.warning('after')\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == "WARNING:root:after\n"
    assert (tmp_path / "first").read_text() == "WARNING:root:first\n"
    assert (tmp_path / "second").read_text() == "WARNING:root:second\n"


def test_a_log_that_cannot_be_opened_is_an_output_error(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match=r"log\.txt: no such file or directory"),
        captured_output(tmp_path / "missing" / "log.txt"),
    ):
        pass
