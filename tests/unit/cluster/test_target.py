"""What is run for a TARGET."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_service.cli.app import app
from rl_service.cluster.staging import package_files
from rl_service.cluster.submit import (
    COMMANDS,
    OTHER_COMMANDS,
    as_job_name,
    entrypoint,
    resolve_target,
)
from rl_service.common.errors import JobError, SettingsError


@pytest.fixture
def project(in_tmp_path: Path) -> Path:
    (in_tmp_path / "My search.yaml").write_text("search_space: {}\n")
    (in_tmp_path / "sub").mkdir()
    (in_tmp_path / "sub" / "run.yaml").write_text("seed: 1\n")
    return in_tmp_path


def arguments(target: str, *given: str, project: Path, ignored: str = "") -> list[str]:
    found = {path.relative_to(project).as_posix(): path for path in project.rglob("*.yaml")}
    found.pop(ignored, None)
    return resolve_target(target, given, project, found | package_files()).arguments


def test_a_command_takes_its_arguments_as_they_are(project: Path) -> None:
    given = ["train", "-e", "CartPole-v1", "-ne", "5"]
    assert arguments(*given, project=project) == given


def test_a_comparison_brings_its_own_folder(project: Path) -> None:
    for folder in (["-o", "figures"], ["-ofigures"], ["--output-dir=figures"]):
        given = ["compare", "runs/a/b", *folder]
        assert arguments(*given, project=project) == given
    with pytest.raises(JobError, match=r"give it after --: rl-service submit compare RUN\.\.\. --"):
        arguments("compare", "runs/a/b", project=project)


def test_a_file_with_a_search_space_is_tuned_and_another_one_trained(project: Path) -> None:
    tuned = arguments("My search.yaml", "--num-samples", "4", project=project)
    assert tuned == ["tune", "My search.yaml", "--num-samples", "4"]
    for path in ("sub/run.yaml", str(project / "sub" / "run.yaml")):
        trained = arguments(path, "-ne", "5", project=project)
        assert trained == ["train", "--config", "sub/run.yaml", "-ne", "5"]


def test_a_preset_is_found_in_the_package_that_travels(project: Path) -> None:
    expected = ["train", "--config", "tune_configs/quickstart.yaml"]
    assert arguments("quickstart", project=project) == expected


def test_a_file_that_does_not_travel_by_itself_is_added(project: Path) -> None:
    path = project / "sub" / "run.yaml"
    found = resolve_target("sub/run.yaml", [], project, package_files())
    assert found.files == {"submitted/run.yaml": path}
    assert found.arguments == ["train", "--config", "submitted/run.yaml"]


@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        ("seve", JobError, "seve is not a settings file, a preset or a command"),
        ("serve", JobError, "serving cannot be submitted, .* run rl-service serve where clients"),
        ("policies", JobError, "policies cannot be submitted, .* run rl-service policies there"),
        ("nothing.yaml", SettingsError, "settings file nothing.yaml does not exist"),
        ("sub", JobError, "sub is not a settings file"),
    ],
)
def test_any_other_target_is_refused(
    project: Path, target: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        arguments(target, project=project)


def test_every_command_can_be_submitted_or_is_told_to_be_none() -> None:
    groups = [group.name for group in app.registered_groups if group.name]
    groups += [str(group.typer_instance.info.name) for group in app.registered_groups]
    names = [command.callback.__name__ for command in app.registered_commands if command.callback]
    assert {*names, *groups} == {*COMMANDS, *OTHER_COMMANDS}


def test_ids_are_short_and_fit_into_a_url() -> None:
    assert as_job_name("My search: ü") == "my_search"
    assert len(as_job_name("x" * 100)) == 40


def test_signals_reach_the_command_itself_and_arguments_are_quoted() -> None:
    line = entrypoint(["train", "--config", "My file.yaml", "; rm"])
    assert line.startswith("exec python -m rl_service.cluster.entrypoint train ")
    assert line.endswith("--config 'My file.yaml' '; rm'")
