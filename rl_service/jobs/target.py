"""What a job runs: a settings file, a preset, or one of our commands with its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rl_service.config.presets import presets_folder, resolve_settings_file
from rl_service.config.yaml_text import read_yaml_mapping
from rl_service.errors import JobError, SettingsError
from rl_service.files import as_folder_name

COMMANDS = ("train", "tune", "evaluate", "compare")
OTHER_COMMANDS = ("serve", "doctor", "models", "policies", "submit", "cluster", "jobs")
"""Those that are no jobs."""
_SUBMITTED = "submitted"  # folder in the zip for a settings file that is not the project's
_LONGEST_NAME = 40


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
    if target in COMMANDS:
        if target == "compare":
            _check_has_folder(arguments)
        return Target(target, [target, *arguments], {})
    path = _settings_file(target)
    name, further = _name_in_zip(path, folder, files)
    is_search = "search_space" in read_yaml_mapping(path)
    command = ["tune", name] if is_search else ["train", "--config", name]
    return Target(as_job_name(path.stem), [*command, *arguments], further)


def as_job_name(text: str) -> str:
    """Text as the first part of a job's id."""
    return as_folder_name(text).lower()[:_LONGEST_NAME].strip("._-") or "job"


def _check_has_folder(arguments: Sequence[str]) -> None:
    """Tells now what the job would only say in its log."""
    if not any(argument.startswith(("-o", "--output")) for argument in arguments):
        raise JobError(
            "compare lacks a folder for its figures, since an -o before -- is the folder that the "
            "job runs in; give it after --: rl-service submit compare RUN... -- -o DIR"
        )


def _settings_file(target: str) -> Path:
    try:
        return resolve_settings_file(Path(target))
    except SettingsError as error:
        if target.endswith((".yaml", ".yml")):
            raise
        if target in OTHER_COMMANDS:
            raise JobError(_no_job(target)) from error
        raise JobError(
            f"{target} is no settings file, no preset and no command; give a YAML file, or "
            f"{', '.join(COMMANDS)} with arguments ({error})"
        ) from error


def _no_job(command: str) -> str:
    """Why a command of ours cannot be submitted, and what to do instead."""
    if command == "serve":
        return (
            "serving cannot be submitted, since a job would take its port and Ray with it when it "
            "ends; run rl-service serve where clients reach it, or deploy deploy/serve.yaml on "
            "the cluster: docs/serving.md"
        )
    return (
        f"{command} cannot be submitted, since it is about the machine that it runs on; run "
        f"rl-service {command} there, and submit {', '.join(COMMANDS)} or a YAML file"
    )


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
