"""`python -m rl_service.cluster.entrypoint COMMAND ...`: what a job runs on the cluster.

Starts in the folder that Ray has unpacked what was submitted into, and that goes with the job. So
settings files are read there, as they were submitted, and the command itself runs in the folder
that lasts: what it writes to relative paths stays.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import NoReturn

from rl_service.cluster.variables import FOLDER_VARIABLE, SECRETS_VARIABLE
from rl_service.common.errors import OutputError
from rl_service.common.files import output_errors

_SETTINGS_SUFFIXES = (".yaml", ".yml")


def main() -> NoReturn:
    """Becomes the command, in the same process: signals that stop the job must reach it."""
    # -P: what was submitted comes first, not what lies in the folder by then.
    start = [sys.executable, "-P", "-m", "rl_service.cli"]
    command = [*start, *as_submitted(sys.argv[1:], Path.cwd())]
    take_secrets(os.environ)
    try:
        _enter(os.environ.get(FOLDER_VARIABLE))
    except OutputError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    os.execv(sys.executable, command)


def as_submitted(arguments: Sequence[str], folder: Path) -> list[str]:
    """Arguments with settings files that were submitted in place of the relative paths to them."""
    return [_as_submitted(argument, folder) for argument in arguments]


def _as_submitted(argument: str, folder: Path) -> str:
    flag, equals, value = (
        argument.rpartition("=") if argument.startswith("--") else ("", "", argument)
    )
    if value.endswith(_SETTINGS_SUFFIXES) and (folder / value).is_file():
        return f"{flag}{equals}{folder / value}"
    return argument


def take_secrets(environment: MutableMapping[str, str]) -> None:
    """Moves the variables that nobody else may read out of their file."""
    path = environment.pop(SECRETS_VARIABLE, None)
    if path is not None:
        environment.update(json.loads(Path(path).read_text(encoding="utf-8")))
        Path(path).unlink()


def _enter(folder: str | None) -> None:
    if folder is None:
        return
    path = Path(folder)
    with output_errors(path, remedy="give a folder of the cluster with -o"):
        path.mkdir(parents=True, exist_ok=True)
        os.chdir(path)


if __name__ == "__main__":
    main()
