"""`rl-service tune` as a user runs it: killed, interrupted, resumed, refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import ray

from tests.conftest import Command
from tests.support.tuning import write_tuning_file


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


@pytest.mark.usefixtures("local_ray")
def test_a_trial_that_can_never_be_placed_is_refused_before_it_waits(
    tmp_path: Path, rl_service: Command
) -> None:
    resources = {"num_env_runners": 2, "num_envs_per_env_runner": 1}
    write_tuning_file(tmp_path / "large.yaml", settings={"resources": resources})
    done = rl_service("tune", "large.yaml")
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "a trial takes 3 CPUs (1 for the learner, 2 x 1" in done.err
    assert not list(tmp_path.glob("runs/*"))


def test_an_experiment_is_named_before_ray_is_connected(
    tmp_path: Path, rl_service: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tuning_file(tmp_path / "small.yaml")
    ray.shutdown()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # where nobody answers
    done = rl_service("tune", "small.yaml")
    assert (done.status, done.err.count("\n")) == (2, 1), done.err
    assert done.out.startswith(f"experiment: {tmp_path}/runs/small_")
