"""Sends a command of ours to a cluster as a job."""

from __future__ import annotations

import json
import os
import platform
import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from custom_models.text import brief
from rl_service.cluster.dashboard import Connection, ray_client
from rl_service.cluster.entrypoint import (
    ENTRYPOINT_MODULE,
    FOLDER_VARIABLE,
    SECRETS_VARIABLE,
    Variables,
    job_variables,
    refuse_secrets,
)
from rl_service.cluster.staging import all_files, git_commit, write_zip
from rl_service.cluster.state import LocalCluster, secrets_folder, write_secret
from rl_service.common.errors import ClusterError, JobError, SettingsError
from rl_service.common.files import as_folder_name
from rl_service.config.presets import presets_folder, resolve_settings_file
from rl_service.config.yaml_text import read_yaml_mapping

COMMANDS = ("train", "tune", "evaluate", "compare")
OTHER_COMMANDS = ("serve", "ui", "doctor", "models", "policies", "submit", "cluster", "jobs")
"""Those that cannot be jobs."""
_ATTEMPTS = 5  # to find an id that is not taken
_SUBMITTED = "submitted"  # folder in the zip for a settings file that is not the project's
_LONGEST_NAME = 40


class Resources(NamedTuple):
    """What the process of the command itself takes.

    Rollout workers, further learners and trials ask for theirs.
    """

    cpus: float | None = None
    gpus: float | None = None


class Submitted(NamedTuple):
    id: str
    notes: list[str]
    """What the user should know, one line each."""


def submit(
    connection: Connection,
    target: str,
    arguments: Sequence[str],
    *,
    name: str | None,
    output_dir: str | None,
    resources: Resources,
    environment: Mapping[str, str] = os.environ,
) -> Submitted:
    """Sends the current folder and a command to a cluster.

    Args:
        connection: the cluster.
        target: a settings file, a preset's name, or a command.
        arguments: come after it.
        name: first part of the job's id; None takes it from the target.
        output_dir: folder of the cluster that the command runs in; None, for a cluster on this
            machine: the current one.
        resources: of the command's process.
        environment: some of its variables go with the job.

    Raises:
        ClusterError: if the cluster does not answer or runs other versions.
        JobError: if the command or the folder cannot be sent.
        SettingsError: if the target is a settings file that cannot be read.
    """
    folder, local = Path.cwd(), connection.local
    files = all_files(folder)
    resolved = resolve_target(target, arguments, folder, files)
    variables = job_variables(environment)
    refuse_secrets(resolved.arguments, variables.secret)
    variables.open[FOLDER_VARIABLE] = _lasting_folder(output_dir, folder, local)
    _check_versions(connection)
    _check_resources(resources, local)
    metadata = {
        "job_name": as_job_name(name or resolved.name),
        "command": shlex.join([target, *arguments]),
    }
    commit = git_commit(folder)
    if commit is not None:
        # Further files are not in the commit: git ignores them, or they are elsewhere.
        metadata["git_commit"] = commit.rstrip("+") + "+" if resolved.files else commit
    request = {
        "entrypoint": entrypoint(resolved.arguments),
        "metadata": metadata,
        "entrypoint_num_cpus": resources.cpus,
        "entrypoint_num_gpus": resources.gpus,
    }
    with tempfile.TemporaryDirectory(prefix="rls-") as staging:
        zip_path = Path(staging, "project.zip")
        write_zip(zip_path, {**files, **resolved.files})
        job_id = _send(connection, request, zip_path, variables)
    notes = []
    if local is None and variables.secret:
        notes.append(
            f"{', '.join(sorted(variables.secret))} not sent: all who may list jobs could read it; "
            f"set it on the cluster's nodes"
        )
    return Submitted(job_id, notes)


def entrypoint(arguments: Sequence[str]) -> str:
    """The command line of a job; `exec`, or SIGTERM would reach the shell alone."""
    return f"exec {shlex.join(['python', '-m', ENTRYPOINT_MODULE, *arguments])}"


def _lasting_folder(output_dir: str | None, folder: Path, local: LocalCluster | None) -> str:
    """The folder that the command runs in: Ray deletes the job's own one after the job."""
    if local is not None:
        return str(Path(output_dir or folder).expanduser().absolute())
    if output_dir is None:
        raise JobError(
            "what the job writes would be lost: its folder on the cluster does not last; give a "
            "folder that all nodes share with -o, such as -o /data"
        )
    if not output_dir.startswith("/"):
        raise JobError(
            f"-o {output_dir} must be an absolute path on the cluster, such as a shared volume"
        )
    return output_dir


def _check_versions(connection: Connection) -> None:
    theirs = connection.dashboard.versions()
    ours = (version("ray"), platform.python_version())
    same_python = theirs.python.split(".")[:2] == ours[1].split(".")[:2]
    if theirs.ray == ours[0] and (same_python or theirs.python == "unknown"):
        return
    raise ClusterError(
        f"the cluster at {connection.dashboard.url} runs Ray {theirs.ray} on Python "
        f"{theirs.python}, and this is Ray {ours[0]} on Python {ours[1]}; install the cluster's "
        f"versions here, or ours there"
    )


def _check_resources(resources: Resources, local: LocalCluster | None) -> None:
    for flag, value in (("--cpus", resources.cpus), ("--gpus", resources.gpus)):
        if value is not None and value < 0:
            raise JobError(f"{flag} {value:g} is negative; give 0 or more")
    if local is None or not resources.cpus:
        return  # an autoscaler may add what is missing
    most = max(node.num_cpus for node in local.nodes)
    if resources.cpus > most:
        raise JobError(
            f"--cpus {resources.cpus:g} fit on no node of the local cluster, whose largest has "
            f"{most}; give fewer, or start it with more --cpus-per-node"
        )


def _send(
    connection: Connection, request: dict[str, Any], zip_path: Path, variables: Variables
) -> str:
    """Submits the job under a free id; secrets go only to a cluster on this machine."""
    client = ray_client(connection.dashboard)
    first_id = f"{request['metadata']['job_name']}-{time.strftime('%m%d-%H%M%S')}"
    for attempt in range(1, _ATTEMPTS + 1):
        job_id = first_id if attempt == 1 else f"{first_id}-{attempt}"
        env_vars = dict(variables.open)
        secrets = secrets_folder() / f"{job_id}-{os.urandom(4).hex()}.json"
        if connection.local is not None and variables.secret:
            write_secret(secrets, json.dumps(variables.secret))
            env_vars[SECRETS_VARIABLE] = str(secrets)
        runtime_env = {"working_dir": str(zip_path), "env_vars": env_vars}
        try:
            client.submit_job(submission_id=job_id, runtime_env=runtime_env, **request)
            return job_id
        except Exception as error:  # Ray raises what it likes
            secrets.unlink(missing_ok=True)
            if "already exists" not in str(error) or attempt == _ATTEMPTS:
                raise JobError(
                    f"the cluster at {connection.dashboard.url} did not take the job "
                    f"({brief(error)}); fix that, or look at rl-service cluster status"
                ) from error
    raise AssertionError("unreachable")


class Target(NamedTuple):
    name: str
    """Short, for the job's id."""
    arguments: list[str]
    """Of `rl-service`, on the cluster."""
    files: dict[str, Path]
    """Further files that must travel, by their name in the zip."""


def resolve_target(
    target: str, arguments: Sequence[str], folder: Path, files: Mapping[str, Path]
) -> Target:
    """Finds out what to run.

    A settings file with a `search_space` is tuned, any other one is trained.

    Args:
        target: a settings file, a preset's name, or a command.
        arguments: come after it.
        folder: that relative paths start from.
        files: that travel anyway, by their name in the zip.

    Raises:
        JobError: if it is none of them, or `compare` without a folder for its figures.
        SettingsError: if the settings file cannot be read.
    """
    if target == "compare" and not any(text.startswith(("-o", "--output")) for text in arguments):
        raise JobError(
            "compare lacks a folder for its figures, since an -o before -- is the folder that the "
            "job runs in; give it after --: rl-service submit compare RUN... -- -o DIR"
        )
    if target in COMMANDS:
        return Target(target, [target, *arguments], {})
    path = _settings_file(target)
    name, further = _name_in_zip(path, folder, files)
    is_search = "search_space" in read_yaml_mapping(path)
    command = ["tune", name] if is_search else ["train", "--config", name]
    return Target(as_job_name(path.stem), [*command, *arguments], further)


def as_job_name(text: str) -> str:
    """Text as the first part of a job's id."""
    return as_folder_name(text).lower()[:_LONGEST_NAME].strip("._-") or "job"


def _settings_file(target: str) -> Path:
    try:
        return resolve_settings_file(Path(target))
    except SettingsError as error:
        if target.endswith((".yaml", ".yml")):
            raise
        if target == "serve":
            raise JobError(
                "serving cannot be submitted, since a job would take its port and Ray with it when "
                "it ends; run rl-service serve where clients reach it, or deploy "
                "deploy/serve.yaml on the cluster: docs/serving.md"
            ) from error
        if target in OTHER_COMMANDS:
            raise JobError(
                f"{target} cannot be submitted, since it is about the machine that it runs on; run "
                f"rl-service {target} there, and submit {', '.join(COMMANDS)} or a YAML file"
            ) from error
        raise JobError(
            f"{target} is not a settings file, a preset or a command; give a YAML file, or "
            f"{', '.join(COMMANDS)} with arguments ({error})"
        ) from error


def _name_in_zip(
    path: Path, folder: Path, files: Mapping[str, Path]
) -> tuple[str, dict[str, Path]]:
    """The name of a settings file in the zip, and the file if it must be added."""
    absolute = path.absolute()
    for root, prefix in ((folder, ""), (presets_folder(), f"{presets_folder().name}/")):
        if absolute.is_relative_to(root):
            name = prefix + absolute.relative_to(root).as_posix()
            if name in files:
                return name, {}
    name = f"{_SUBMITTED}/{path.name}"
    return name, {name: absolute}
