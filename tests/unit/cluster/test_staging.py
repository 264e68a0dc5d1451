"""What travels with a job: what git has or would add, and this package; not more than fits."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_service.cluster import staging
from rl_service.common.errors import JobError

ROOT = Path(__file__).parents[3]


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=me", "-c", "user.email=me@example.com")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    write(tmp_path, "tracked.py", "sub/other.py", "data/big.bin", "gone.py")
    (tmp_path / ".gitignore").write_text("data/\n*.log\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return tmp_path


def test_in_a_repository_what_git_ignores_stays_and_what_is_new_goes(repository: Path) -> None:
    write(repository, "new.py", "x.log", "runs/a/config.yaml", "sub/x.log")
    (repository / "gone.py").unlink()
    found = staging.project_files(repository)
    assert list(found) == [".gitignore", "new.py", "sub/other.py", "tracked.py"]


def test_in_a_repository_what_is_hidden_goes_only_if_git_has_it(repository: Path) -> None:
    write(repository, ".config/tracked.yaml")
    git(repository, "add", ".config")
    clean = staging.git_commit(repository)
    write(repository, ".env", ".aws/credentials", "sub/.netrc", ".config/new.yaml")
    found = staging.project_files(repository)
    assert [name for name in found if name.startswith(".")] == [
        ".config/tracked.yaml",
        ".gitignore",
    ]
    assert staging.git_commit(repository) == clean


def test_from_a_folder_in_a_repository_only_that_folder_goes(repository: Path) -> None:
    write(repository, "sub/x.log")
    assert list(staging.project_files(repository / "sub")) == ["other.py"]


def test_without_git_outputs_environments_and_what_is_hidden_stay(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "sub/b.yaml", ".venv/lib/c.py", "runs/r/x", "checkpoints/y", "a.pyc")
    write(tmp_path, "sub/__pycache__/b.pyc", "sub/runs/kept.py")
    write(tmp_path, ".env", ".ssh/id_ed25519", ".aws/credentials", "sub/.netrc", "sub/.hidden/x.py")
    assert list(staging.project_files(tmp_path)) == ["a.py", "sub/b.yaml", "sub/runs/kept.py"]


def test_a_link_to_a_folder_does_not_go(tmp_path: Path) -> None:
    write(tmp_path, "a.py")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert list(staging.project_files(tmp_path)) == ["a.py"]


def test_the_package_that_runs_here_goes_with_every_job(tmp_path: Path) -> None:
    write(tmp_path, "a.py")
    files = staging.all_files(tmp_path)
    wanted = {"a.py", "rl_service/cli/train.py", "custom_models/nets.py"}
    assert wanted | {"tune_configs/quickstart.yaml"} <= set(files)
    assert [name for name in files if "__pycache__" in name or name.endswith(".pyc")] == []


def test_a_checkout_of_this_package_is_its_own_project(tmp_path: Path) -> None:
    assert staging.all_files(ROOT)["rl_service/common/errors.py"].read_text()


def test_a_folder_that_would_hide_the_package_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "custom_models/__init__.py")
    with pytest.raises(JobError, match=r"custom_models has the name of a package .* rename it"):
        staging.all_files(tmp_path)


def test_too_much_is_refused_with_the_biggest_files_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "package_files", dict)
    monkeypatch.setattr(staging, "MAX_BYTES", 3_000_000)
    for name, size in (("a.bin", 2_000_000), ("b.bin", 1_500_000), ("c.py", 10)):
        (tmp_path / name).write_bytes(bytes(size))
    with pytest.raises(
        JobError, match=r"holds 3\.5 MB in 3 files.*a\.bin \(2\.0 MB\), b\.bin"
    ) as e:
        staging.all_files(tmp_path)
    assert "move what the job does not need out of the folder" in str(e.value)
    assert ".gitignore" not in str(e.value)  # which is read in a repository alone
    git(tmp_path, "init", "--quiet")
    with pytest.raises(JobError, match=r"name what the job does not need in \.gitignore"):
        staging.all_files(tmp_path)


def test_the_same_files_give_the_same_zip_with_their_contents(tmp_path: Path) -> None:
    write(tmp_path / "project", "a.py", "sub/b.py")
    (tmp_path / "project" / "a.py").chmod(0o755)
    files = staging.project_files(tmp_path / "project")
    staging.write_zip(tmp_path / "1.zip", files)
    (tmp_path / "project" / "a.py").touch()
    staging.write_zip(tmp_path / "2.zip", dict(reversed(files.items())))
    assert (tmp_path / "1.zip").read_bytes() == (tmp_path / "2.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "1.zip") as packed:
        assert {name: packed.read(name).decode() for name in packed.namelist()} == {
            "a.py": "a.py",
            "sub/b.py": "sub/b.py",
        }


changes: dict[str, Callable[[Path], object]] = {
    "changed": lambda folder: (folder / "tracked.py").write_text("changed"),
    "staged": lambda folder: (write(folder, "new.py"), git(folder, "add", "new.py")),
    "new": lambda folder: write(folder, "new.py"),
    "gone": lambda folder: (folder / "gone.py").unlink(),
}


@pytest.mark.parametrize("change", changes)
def test_a_commit_says_whether_what_travels_differs_from_it(repository: Path, change: str) -> None:
    clean = staging.git_commit(repository)
    assert clean is not None
    assert len(clean) == 40
    (repository / "tracked.py").touch()
    write(repository, "x.log", "data/new.bin", "runs/a/config.yaml")  # none of them travels
    assert staging.git_commit(repository) == clean
    changes[change](repository)
    assert staging.git_commit(repository) == f"{clean}+"


def test_a_commit_is_judged_by_the_folder_that_travels(repository: Path) -> None:
    (repository / "tracked.py").write_text("changed")
    write(repository, "new.py")
    clean = str(staging.git_commit(repository / "sub"))
    assert len(clean) == 40
    write(repository, "sub/new.py")
    assert staging.git_commit(repository / "sub") == f"{clean}+"


def test_a_folder_outside_of_any_repository_has_no_commit(tmp_path: Path) -> None:
    assert staging.git_commit(tmp_path) is None
