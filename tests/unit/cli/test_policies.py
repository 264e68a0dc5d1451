"""`rl-service policies register`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rl_service.cli.app import main
from rl_service.policies.registry import PolicyRegistry
from tests.conftest import WriteTestBundle


@pytest.fixture
def bundle(in_tmp_path: Path, write_test_bundle: WriteTestBundle) -> Path:
    write_test_bundle(in_tmp_path / "bundle")
    return in_tmp_path / "bundle"


def register(*arguments: str) -> int:
    return main(["policies", "register", *arguments])


def test_a_folder_becomes_a_version(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert register("bundle") == 0
    root = bundle.parent / "policies"
    assert capsys.readouterr().out == f"cartpole-v1-mlp:1 (best) is in the registry {root}\n"
    assert register("bundle", "--name", "mine", "--alias", "production", "--root", "other") == 0
    other = bundle.parent / "other"
    told = f"mine:1 (best, production) is in the registry {other}\n"
    assert capsys.readouterr().out == told
    assert PolicyRegistry("other").aliases("mine") == {"best": 1, "production": 1}


def test_an_alias_moves_by_hand(bundle: Path, write_test_bundle: WriteTestBundle) -> None:
    write_test_bundle(bundle.parent / "worse", seed=1, evaluation={"episode_return_mean": 1.0})
    for folder in ("bundle", "worse"):
        assert register(folder, "--name", "mine") == 0
    assert PolicyRegistry().aliases("mine") == {"best": 1}
    assert register("worse", "--name", "mine", "--alias", "best") == 0
    assert PolicyRegistry().aliases("mine") == {"best": 2}
    assert len(PolicyRegistry().versions("mine")) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none"], "none is no policy bundle: no such folder"),
        (["bundle", "--name", "Mine"], "is no policy name"),
        (["bundle", "--alias", "a/b"], "is no alias"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    arguments: list[str], said: str, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert register(*arguments) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line
    assert os.listdir(bundle.parent) == ["bundle"]
