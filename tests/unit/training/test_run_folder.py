"""Making and finding the folder of a run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from custom_models.configs import MLPConfig
from rl_service.common.errors import CheckpointError, OutputError
from rl_service.config.settings import EnvSettings, Settings, TrackingSettings
from rl_service.training.run import Run


def settings_in(folder: Path | str, **tracking: object) -> Settings:
    return Settings(
        model=MLPConfig(hidden_sizes=(32, 16)),
        env=EnvSettings(id="CartPole-v1"),
        tracking=TrackingSettings(output_dir=str(folder), **tracking),
        seed=7,
    )


def test_a_run_lies_under_its_experiment_and_lists_its_settings(tmp_path: Path) -> None:
    run = Run.create(settings_in(tmp_path), command=["rl-service", "train"])
    assert run.path.parent == tmp_path / "runs" / "mlp_ppo_CartPole-v1"
    assert sorted(p.name for p in run.path.iterdir()) == ["config.yaml", "environment.json"]
    assert Run.open(run.path) == run


def test_runs_of_the_same_second_have_their_own_folders(tmp_path: Path) -> None:
    runs = [Run.create(settings_in(tmp_path), command=[]) for _ in range(10)]
    assert len({run.path for run in runs}) == 10
    assert len({run.bundle_path for run in runs}) == 10


def test_a_run_is_found_by_its_id_under_the_current_folder(in_tmp_path: Path) -> None:
    run = Run.create(settings_in("."), command=[])
    assert Run.open(run.run_id) == run


def test_the_bundle_lies_beside_the_runs_by_model_and_env(tmp_path: Path) -> None:
    run = Run.create(settings_in(tmp_path), command=[])
    assert run.bundle_path.parent == tmp_path / "checkpoints" / "mlp" / "CartPole-v1"
    assert len(run.bundle_path.name) == 10
    assert Run.open(run.path).bundle_path == run.bundle_path


def test_a_relative_output_folder_stays_where_it_was(
    in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(settings_in("out"), command=[])
    (in_tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(in_tmp_path / "elsewhere")
    resumed = Run.open(run.path)
    assert resumed.bundle_path.is_relative_to(in_tmp_path / "out" / "checkpoints")


def test_a_run_that_was_moved_writes_its_bundle_where_its_settings_say(tmp_path: Path) -> None:
    run = Run.create(settings_in(tmp_path / "out"), command=[])
    moved = Run.open(shutil.move(run.path, tmp_path / "moved"))
    assert moved.bundle_path.is_relative_to(tmp_path / "out" / "checkpoints")


@pytest.mark.parametrize("name", ["../../outside", "a/b", "my env: v2", ".."])
def test_no_experiment_name_leaves_the_runs_folder(tmp_path: Path, name: str) -> None:
    run = Run.create(settings_in(tmp_path, experiment=name), command=[])
    assert run.path.parents[1] == tmp_path / "runs"


def test_an_env_class_makes_a_readable_folder_name(tmp_path: Path) -> None:
    settings = settings_in(tmp_path).model_copy(update={"env": EnvSettings(id="my.envs:Maze")})
    run = Run.create(settings, command=[])
    assert run.path.parent.name == "mlp_ppo_my.envs_Maze"
    assert run.bundle_path.parent.name == "my.envs_Maze"


def test_the_environment_names_versions_hardware_and_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run = Run.create(settings_in(tmp_path), command=["rl-service", "train", "-m", "mlp"])
    environment = json.loads((run.path / "environment.json").read_text())
    assert environment["command"] == ["rl-service", "train", "-m", "mlp"]
    assert environment["packages"]["torch"] == version("torch")
    assert environment["hardware"]["num_cpus"] == len(os.sched_getaffinity(0))
    assert environment["hardware"]["memory_bytes"] > 2**28
    assert environment["threads"]["OMP_NUM_THREADS"] == "1"
    assert environment["threads"]["worker"] == 1


def test_the_environment_names_the_commit_of_a_checkout(tmp_path: Path) -> None:
    here = Path(__file__).parent
    head = subprocess.run(
        ["git", "-C", here, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    if head.returncode:
        pytest.skip("these tests do not run in a git checkout")
    run = Run.create(settings_in(tmp_path), command=[])
    git = json.loads((run.path / "environment.json").read_text())["git"]
    assert git["commit"] == head.stdout.strip()
    assert isinstance(git["dirty"], bool)


def test_an_output_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="not a directory; choose another output folder") as error:
        Run.create(settings_in(tmp_path / "file"), command=[])
    assert str(tmp_path / "file" / "runs") in str(error.value)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is not a run: it has no config\.yaml"):
        Run.open(tmp_path)


def test_an_unknown_run_is_refused_with_the_newest_that_there_is(in_tmp_path: Path) -> None:
    unknown = r"no run '20260101-000000-abc'.*; there are no runs yet"
    with pytest.raises(CheckpointError, match=unknown):
        Run.open("20260101-000000-abc")
    run = Run.create(settings_in("."), command=[])
    with pytest.raises(CheckpointError, match=f"the newest is runs/.*/{run.run_id}"):
        Run.open("20260101-000000-abc")


@pytest.mark.parametrize("text", ["seed: [1", "sead: 1\n", "seed: -1\n", "\x00\x01"])
def test_settings_that_cannot_be_read_are_one_line(tmp_path: Path, text: str) -> None:
    run = Run.create(settings_in(tmp_path), command=[])
    (run.path / "config.yaml").write_text(text)
    with pytest.raises(CheckpointError, match=r"its config\.yaml is damaged") as caught:
        Run.open(run.path)
    assert "\n" not in str(caught.value)


def test_a_run_of_an_earlier_release_goes_on_without_action_masks(tmp_path: Path) -> None:
    run = Run.create(settings_in(tmp_path), command=[])
    assert Run.open(run.path).settings.env.action_masks
    config = run.path / "config.yaml"
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if "action_masks" not in line))
    earlier = Run.open(run.path).settings
    assert not earlier.env.action_masks
    assert not Run.open(run.with_settings(earlier).path).settings.env.action_masks


def test_progress_is_kept_in_the_folder(tmp_path: Path) -> None:
    run = Run.create(settings_in(tmp_path), command=[])
    for iteration in (1, 2, 3):
        run.append_progress({"training_iteration": iteration})
    run.rewind_progress(2)
    assert Run.open(run.path).read_progress() == [
        {"training_iteration": 1},
        {"training_iteration": 2},
    ]
    assert (run.path / "progress.jsonl").exists()
