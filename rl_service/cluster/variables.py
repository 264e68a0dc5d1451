"""Which environment variables go with a job, and which of them nobody else may see.

Whoever may list the jobs of a cluster can read their commands, their metadata and their
`env_vars`: Ray's dashboard hides values from browsers alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rl_service.cluster.nodes import STOP_WAIT_S, STOP_WAIT_VARIABLE
from rl_service.cluster.state import HOME_VARIABLE
from rl_service.common.errors import JobError

ENTRYPOINT_MODULE = "rl_service.cluster.entrypoint"
"""What a job runs with `python -m`, before the arguments of our command."""
FOLDER_VARIABLE = "RL_SERVICE_JOB_FOLDER"
"""Folder of the cluster that the job runs in."""
SECRETS_VARIABLE = "RL_SERVICE_JOB_SECRETS"
"""File with a JSON object of variables; the job reads it, and removes it."""

_PASSED_ON_PREFIXES = ("WANDB_", "RL_SERVICE_", "AWS_")
# Of this machine, and of serving.
_NOT_PASSED_ON = (HOME_VARIABLE, FOLDER_VARIABLE, SECRETS_VARIABLE, "RL_SERVICE_TOKENS")
_NOT_PASSED_ON_PREFIXES = ("RL_SERVICE_CLUSTER_",)
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_SECRET_IN_URI = re.compile(r"://[^/\s@]*:[^/\s@]+@")
_SHORTEST_SECRET = 8  # characters; shorter ones are in arguments by chance


class Variables(NamedTuple):
    """Values by name."""

    open: dict[str, str]
    secret: dict[str, str]


def job_variables(environment: Mapping[str, str]) -> Variables:
    """The variables of a job out of those of the command that submits it."""
    variables = Variables({STOP_WAIT_VARIABLE: str(STOP_WAIT_S)}, {})
    for name, value in environment.items():
        if not name.startswith(_PASSED_ON_PREFIXES) or name in _NOT_PASSED_ON:
            continue
        if name.startswith(_NOT_PASSED_ON_PREFIXES) or not value:
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
