"""Where a job's results stay: its own folder on the cluster goes with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_service.cluster.state import LocalCluster
from rl_service.config.presets import resolve_settings_file
from rl_service.config.yaml_text import read_yaml_mapping
from rl_service.errors import JobError, SettingsError
from rl_service.jobs.target import Target
from rl_service.policies.registry import REGISTRY_VARIABLE


def lasting_folder(
    target: Target,
    output_dir: str | None,
    folder: Path,
    local: LocalCluster | None,
    variables: Mapping[str, str],
) -> str | None:
    """The folder that the command runs in; None: that of the job, which goes with it.

    Args:
        target: what the job runs.
        output_dir: what the user gave.
        folder: that relative paths start from here.
        local: the cluster, if it shares our files.
        variables: of the environment, that go with the job.

    Raises:
        JobError: if results would be lost, or the folder cannot be one of the cluster.
    """
    if local is not None:
        return str(Path(output_dir or folder).expanduser().absolute())
    if output_dir is None and needs_folder(target, variables):
        raise JobError(
            "what the job writes would go with it: its folder on the cluster does not last; give "
            "a folder that all nodes share with -o" + _also_for_tune(target.arguments)
        )
    if output_dir is not None and not output_dir.startswith("/"):
        raise JobError(
            f"-o {output_dir} must be an absolute path on the cluster, such as a shared volume"
        )
    return output_dir


def needs_folder(target: Target, variables: Mapping[str, str]) -> bool:
    """Whether a command writes files below the folder that it runs in."""
    command, *arguments = target.arguments
    if command == "evaluate":
        return any(argument.partition("=")[0] == "--video" for argument in arguments)
    if command == "tune":
        return not (
            _stays(_value(arguments, "--storage")) and _policy_stays(target, arguments, variables)
        )
    return True


def _policy_stays(target: Target, arguments: Sequence[str], variables: Mapping[str, str]) -> bool:
    """Whether a tuning file itself has the best policy and its entry in the registry elsewhere."""
    tracking = _tracking(target, arguments)
    registry = tracking.get("registry") or variables.get(REGISTRY_VARIABLE)
    return _stays(tracking.get("output_dir")) and (not registry or _stays(registry))


def _tracking(target: Target, arguments: Sequence[str]) -> Mapping[str, Any]:
    """`settings.tracking` of the first argument that is a tuning file."""
    for argument in arguments:
        try:
            path = target.files.get(argument) or resolve_settings_file(Path(argument))
            settings = read_yaml_mapping(path).get("settings")
        except SettingsError:
            continue
        tracking = settings.get("tracking") if isinstance(settings, Mapping) else None
        return tracking if isinstance(tracking, Mapping) else {}
    return {}


def _value(arguments: Sequence[str], flag: str) -> str | None:
    """The value of a flag, which is the last one that is given."""
    found = None
    for argument, following in zip(arguments, [*arguments[1:], None], strict=True):
        name, equals, value = argument.partition("=")
        if name == flag:
            found = value if equals else following
    return found


def _stays(place: object) -> bool:
    """Whether it is a URI or an absolute path; relative ones start from the job's folder."""
    return isinstance(place, str) and (place.startswith("/") or "://" in place)


def _also_for_tune(arguments: Sequence[str]) -> str:
    if arguments[0] != "tune":
        return ""
    return (
        "; --storage keeps the trials alone, and the best policy and its entry in the registry "
        "go to settings.tracking.output_dir and registry, or below -o"
    )
