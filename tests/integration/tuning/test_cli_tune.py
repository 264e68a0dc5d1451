"""`rl-service tune` as a user runs it: killed, interrupted, resumed, refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_service.machine import available_cpus
from tests.conftest import Command
from tests.support.tuning import run_command, write_tuning_file


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "tune needs a file; write one with a search_space or try tuning/CartPole-v1"),
        (("nosuch.yaml",), "nosuch.yaml"),
        (("empty.yaml",), "search_space is empty"),
        (("small.yaml", "--storage", "nosuch://x"), "protocol fsspec knows here"),
        (("small.yaml", "--storage", "small.yaml"), "cannot write"),
        (("--resume", "nothing"), "no tuning experiment 'nothing'"),
        (("small.yaml", "--resume", "x"), "--resume takes everything from the experiment"),
        (("small.yaml", "--num-samples", "0"), "see rl-service tune --help"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    rl_service: Command, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    write_tuning_file(tmp_path / "small.yaml")
    write_tuning_file(tmp_path / "empty.yaml", search_space={})
    assert words in rl_service("tune", *arguments).refusal
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.yaml", "small.yaml"]


def test_a_trial_that_can_never_be_placed_is_refused_before_it_waits(tmp_path: Path) -> None:
    cpus = available_cpus()
    resources = {"num_env_runners": cpus, "num_envs_per_env_runner": 1}
    algorithm = {"train_batch_size": 64 * cpus}
    write_tuning_file(
        tmp_path / "large.yaml", settings={"resources": resources, "algorithm": algorithm}
    )
    status, _, err = run_command("large.yaml", cwd=tmp_path)
    assert status == 2
    [line] = err.splitlines()
    assert f"a trial takes {cpus + 1} CPUs (1 for the learner, {cpus} x 1" in line
    assert not list(tmp_path.glob("runs/*"))


def test_an_experiment_is_named_before_ray_is_connected(tmp_path: Path) -> None:
    write_tuning_file(tmp_path / "small.yaml")
    nowhere = "127.0.0.1:1"  # what dies while it connects says no more than what is refused
    status, out, err = run_command("small.yaml", cwd=tmp_path, ray_address=nowhere)
    assert (status, err.count("\n")) == (2, 1), err
    assert out.startswith(f"experiment: {tmp_path}/runs/small_")
