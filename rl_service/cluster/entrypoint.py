"""`python -m rl_service.cluster.entrypoint COMMAND ...`: what a job runs on the cluster.

A job starts in the folder into which Ray has unpacked what was submitted, and which Ray deletes
after the job. Settings files are read there, as they were submitted. The command itself runs in a
folder that lasts, so what it writes to relative paths stays.

Whoever may list the jobs of a cluster can read their commands, their metadata and their
`env_vars` (Ray's dashboard hides values from browsers alone), so secrets go another way: in a file.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from rl_service.cluster.nodes import STOP_WAIT_S, STOP_WAIT_VARIABLE
from rl_service.cluster.state import HOME_VARIABLE
from rl_service.common.errors import JobError, OutputError
from rl_service.common.files import output_errors

ENTRYPOINT_MODULE = "rl_service.cluster.entrypoint"
"""What a job runs with `python -m`, before the arguments of our command."""
FOLDER_VARIABLE = "RL_SERVICE_JOB_FOLDER"
"""Folder of the cluster that the job runs in."""
SECRETS_VARIABLE = "RL_SERVICE_JOB_SECRETS"
"""File with a JSON object of variables; the job reads it, and removes it."""

_SETTINGS_SUFFIXES = (".yaml", ".yml")
_PASSED_ON_PREFIXES = ("WANDB_", "RL_SERVICE_", "AWS_")
# Of this machine, and of serving.
_NOT_PASSED_ON = (HOME_VARIABLE, FOLDER_VARIABLE, SECRETS_VARIABLE, "RL_SERVICE_TOKENS")
_NOT_PASSED_ON_PREFIX = "RL_SERVICE_CLUSTER_"
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_SECRET_IN_URI = re.compile(r"://[^/\s@]*:[^/\s@]+@")
_SHORTEST_SECRET = 8  # characters; shorter ones are in arguments by chance


class Variables(NamedTuple):
    """Environment variables of a job, values by name."""

    open: dict[str, str]
    secret: dict[str, str]
    """Nobody else may see them."""


def job_variables(environment: Mapping[str, str]) -> Variables:
    """The variables of a job out of those of the command that submits it."""
    variables = Variables({STOP_WAIT_VARIABLE: str(STOP_WAIT_S)}, {})
    for name, value in environment.items():
        if not value or not name.startswith(_PASSED_ON_PREFIXES):
            continue
        if name in _NOT_PASSED_ON or name.startswith(_NOT_PASSED_ON_PREFIX):
            continue
        is_secret = _SECRET_NAME.search(name) or _SECRET_IN_URI.search(value)
        (variables.secret if is_secret else variables.open)[name] = value
    return variables


def refuse_secrets(arguments: Sequence[str], secret: Mapping[str, str]) -> None:
    """Raises JobError if the command of a job, which all can read, holds a secret."""
    for argument in arguments:
        for name, value in secret.items():
            if len(value) >= _SHORTEST_SECRET and value in argument:
                raise JobError(
                    f"an argument of the job holds the value of {name}, and all who may list jobs "
                    f"can read it; leave it out, the job gets {name} without it"
                )
        if _SECRET_IN_URI.search(argument):
            raise JobError(
                "an argument of the job holds a password in a URI, and all who may list jobs can "
                "read it; leave it out, and set the store's own variables on the cluster"
            )


def main() -> NoReturn:
    """Becomes the command, in the same process: signals that stop the job must reach it."""
    # -P: what was submitted comes first, not what is in the folder by then.
    start = [sys.executable, "-P", "-m", "rl_service.cli"]
    command = [*start, *as_submitted(sys.argv[1:], Path.cwd())]
    take_secrets(os.environ)
    folder = Path(os.environ[FOLDER_VARIABLE])
    try:
        with output_errors(folder, remedy="give a folder of the cluster with -o"):
            folder.mkdir(parents=True, exist_ok=True)
            os.chdir(folder)
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


if __name__ == "__main__":
    main()
