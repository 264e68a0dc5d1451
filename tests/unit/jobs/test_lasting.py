"""What a job writes must outlive it: which commands need a folder of the cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_service.jobs.lasting import needs_folder
from rl_service.jobs.target import Target

S3 = "s3://bucket/x"


def search(folder: Path, tracking: str) -> Path:
    path = folder / "search.yaml"
    path.write_text(f"settings:\n  tracking: {tracking}\nsearch_space: {{}}\n")
    return path


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["train"], True),
        (["tune", "x.yaml"], True),
        (["tune", "tuning/CartPole-v1", f"--storage={S3}"], True),
        (["tune", "--resume", S3], True),
        (["evaluate", "zoo:lunarlander"], False),
        (["evaluate", "zoo:lunarlander", "--video", "x.mp4"], True),
        (["evaluate", "zoo:lunarlander", "--video=x.mp4"], True),
        (["compare", "runs/a/b", "-o", "figures"], True),
    ],
)
def test_what_writes_files_needs_a_folder_that_lasts(given: list[str], expected: bool) -> None:
    assert needs_folder(Target("x", given, {}), {}) == expected


@pytest.mark.parametrize(
    ("tracking", "storage", "variables", "expected"),
    [
        ("{output_dir: /data}", S3, {}, False),
        ("{output_dir: /data}", "/data/experiments", {}, False),
        ("{output_dir: /data}", "experiments", {}, True),
        ("{output_dir: data}", S3, {}, True),
        ("{output_dir: /data, registry: policies}", S3, {}, True),
        (f"{{output_dir: /data, registry: {S3}}}", S3, {}, False),
        ("{output_dir: /data}", S3, {"RL_SERVICE_REGISTRY": "policies"}, True),
        ("{output_dir: /data}", S3, {"RL_SERVICE_REGISTRY": S3}, False),
        ("{}", S3, {"RL_SERVICE_REGISTRY": S3}, True),
    ],
)
def test_a_search_needs_none_if_trials_best_policy_and_registry_are_all_elsewhere(
    tmp_path: Path, tracking: str, storage: str, variables: dict[str, str], expected: bool
) -> None:
    path = search(tmp_path, tracking)
    for target in (
        Target("x", ["tune", str(path), "--storage", storage], {}),
        Target("x", ["tune", f"--storage={storage}", str(path)], {}),
        Target("x", ["tune", "submitted/a.yaml", "--storage", storage], {"submitted/a.yaml": path}),
    ):
        assert needs_folder(target, variables) == expected
