"""What travels to the cluster: the files of the current folder, and this package beside them.

One zip file, the same to the byte for the same files, so that Ray uploads it once. Ray's own way to
pack (`working_dir` with `excludes`) does not ask git: it would send new hidden files such as `.env`
or leave out those that git has, and nobody could say whether what travels is the commit.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from rl_service.common.errors import JobError
from rl_service.common.files import output_errors

MAX_BYTES = 100 * 10**6
_PACKAGES = ("rl_service", "custom_models", "tune_configs")
_OUTPUTS = ("runs", "checkpoints", "policies", "wandb")
"""Folders that runs write to; also without a .gitignore that names them."""
_NEVER = (".git", "__pycache__", ".venv", "venv", "node_modules")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # of all files in the zip: their times do not matter
_SHOWN_FILES = 3
_GIT_TIMEOUT_S = 60.0


def project_files(folder: Path) -> dict[str, Path]:
    """The files of a project by their name in the zip.

    In a git repository those that git has or would add. Elsewhere all but the usual leftovers.
    What begins with a dot travels only if git has it: keys and passwords are there.

    Args:
        folder: the files below it.
    """
    tracked = _git(folder, "ls-files", "-z", "--cached")
    new = _walk(folder) if tracked is None else _untracked(folder)
    found = [*(tracked or "").split("\0"), *_visible(new)]
    files = {name: folder / name for name in found if name and _is_wanted(name)}
    return {name: path for name, path in sorted(files.items()) if path.is_file()}


def package_files() -> dict[str, Path]:
    """The files of this package and of those that come with it, by their name in the zip."""
    files = {}
    for package in _PACKAGES:
        root = Path(str(importlib.import_module(package).__file__)).parent
        for name in _walk(root):
            files[f"{package}/{name}"] = root / name
    return files


def git_commit(folder: Path) -> str | None:
    """The commit of a folder, with `+` if what travels differs from it; None without a commit.

    Files that are new, changed or gone count, and those that never travel do not.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(folder, "diff", "-z", "--name-only", "--relative", "HEAD") or ""
    names = [*changed.split("\0"), *_visible(_untracked(folder))]
    return commit.strip() + ("+" if any(name and _is_wanted(name) for name in names) else "")


def all_files(folder: Path) -> dict[str, Path]:
    """Project and package together.

    Raises:
        JobError: if a folder of the project would hide one of the package, or it is all too big.
    """
    project, package = project_files(folder), package_files()
    for name in _PACKAGES:
        hides = any(file.startswith(f"{name}/") or file == f"{name}.py" for file in project)
        init = f"{name}/__init__.py"  # the project's may be that of the package that runs now
        is_own = init in project and project[init].resolve() == package[init].resolve()
        if hides and not is_own:
            raise JobError(
                f"{folder / name} has the name of a package of rl-service and would hide it; "
                f"rename it, or submit from another folder"
            )
    files = project | package
    _check_size(folder, files)
    return files


def write_zip(path: Path, files: Mapping[str, Path]) -> None:
    """Packs files; the same files give the same bytes.

    Raises:
        JobError: if a file cannot be read.
        OutputError: if the zip cannot be written.
    """
    with (
        output_errors(path),
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as z,
    ):
        for name, source in sorted(files.items()):
            try:
                content = source.read_bytes()
            except OSError as error:
                raise JobError(
                    f"{source} cannot be sent: {error.strerror}; fix its permissions, or move it "
                    f"out of the folder"
                ) from error
            entry = zipfile.ZipInfo(name, date_time=_EPOCH)
            entry.external_attr = (0o755 if os.access(source, os.X_OK) else 0o644) << 16
            z.writestr(entry, content, zipfile.ZIP_DEFLATED, compresslevel=1)


def _check_size(folder: Path, files: Mapping[str, Path]) -> None:
    sizes = {name: path.stat().st_size for name, path in files.items()}
    total = sum(sizes.values())
    if total <= MAX_BYTES:
        return
    biggest = sorted(sizes, key=lambda name: -sizes[name])[:_SHOWN_FILES]
    named = ", ".join(f"{name} ({sizes[name] / 1e6:,.1f} MB)" for name in biggest)
    remedy = "name what the job does not need in .gitignore, and take it out of git if it is there"
    if _git(folder, "rev-parse", "--git-dir") is None:
        remedy = "move what the job does not need out of the folder"
    raise JobError(
        f"{folder} holds {total / 1e6:,.1f} MB in {len(files)} files, and at most "
        f"{MAX_BYTES / 1e6:.0f} MB go with a job; the biggest are {named}: {remedy}, or submit "
        f"from another folder"
    )


def _is_wanted(name: str) -> bool:
    first, *_ = parts = name.split("/")
    return not (first in _OUTPUTS and len(parts) > 1) and not set(parts) & set(_NEVER)


def _untracked(folder: Path) -> list[str]:
    return (_git(folder, "ls-files", "-z", "--others", "--exclude-standard") or "").split("\0")


def _visible(names: Iterable[str]) -> Iterable[str]:
    return (name for name in names if not any(part.startswith(".") for part in name.split("/")))


def _walk(folder: Path) -> Iterable[str]:
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _NEVER]
        for name in names:
            if not name.endswith(".pyc"):
                yield Path(root, name).relative_to(folder).as_posix()


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says, or None if there is no repository or no git."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            check=True,
            timeout=_GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return os.fsdecode(done.stdout)
