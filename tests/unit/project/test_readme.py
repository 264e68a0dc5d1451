"""What the README asks a reader to type exists."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rl_service.cli.app import app

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {name for line in re.findall(r"(?m)(?<![\w-])make ([a-z ]+)", README)
               for name in line.split()} - {"and"}  # fmt: skip
    assert {"train", "test", "lint", "type", "results", "bench"} <= targets
    assert {name for name in targets if f"\n{name}:" not in makefile} == set()


@pytest.mark.parametrize(
    ("target", "extras"), [(".venv/.installed", "dev"), (".venv/.installed-bench", "dev,bench")]
)
def test_make_installs_the_extras_that_its_targets_need(target: str, extras: str) -> None:
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    [*_, last] = [line for line in done.stdout.splitlines() if "pip install" in line]
    assert last.endswith(f"-e '.[{extras}]'")


@pytest.mark.parametrize(
    "verb",
    [
        "train",
        "evaluate",
        "compare",
        "tune",
        "serve",
        "doctor",
        *(
            f"policies {verb}"
            for verb in ("list", "show", "register", "promote", "rollback", "export")
        ),
        "submit",
        *(f"cluster {verb}" for verb in ("up", "autoscale", "status", "down")),
        *(f"jobs {verb}" for verb in ("list", "status", "logs", "stop")),
    ],
)
def test_every_command_is_shown_and_has_the_flags_that_are_shown(verb: str) -> None:
    lines = re.findall(rf"rl-service {verb}[^`\n]*", README)
    assert lines
    shown = {flag for line in lines for flag in re.findall(r"(?<=\s)--?[a-z][a-z-]*", line)}
    known = CliRunner().invoke(app, [*verb.split(), "--help"], env={"COLUMNS": "200"}).output
    assert {flag for flag in shown if flag not in known} == set()
