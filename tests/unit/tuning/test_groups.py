"""Which runs are put together, and which are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_service.common.errors import CheckpointError, SettingsError
from rl_service.tuning.curves import load_groups
from tests.unit.tuning.conftest import WriteRun


def seeds(*references: object) -> dict[str, list[int]]:
    """Seeds of the runs by label."""
    groups = load_groups([str(reference) for reference in references])
    return {group.label: group.seeds for group in groups}


def test_runs_that_differ_only_in_seed_belong_together(write_run: WriteRun) -> None:
    runs = [write_run(1.0, seed=seed) for seed in (3, 1)]
    assert seeds(runs[0].path, runs[1].run_id) == {"mlp ppo CartPole-v1": [3, 1]}


def test_other_settings_make_another_group_and_are_named(write_run: WriteRun) -> None:
    slow, fast, fast_too = (
        write_run(1.0, seed=seed, actor_lr=lr) for seed, lr in ((0, 1e-4), (1, 1e-3), (2, 1e-3))
    )
    assert seeds(slow.path, fast.path, fast_too.path) == {
        "mlp ppo CartPole-v1, algorithm.actor_lr=0.0001": [0],
        "mlp ppo CartPole-v1, algorithm.actor_lr=0.001": [1, 2],
    }


def test_a_label_puts_together_what_it_is_given_to(write_run: WriteRun) -> None:
    a, b, c = (write_run(1.0, seed=i, actor_lr=1e-4 * (i + 1)) for i in range(3))
    found = seeds(f"my  runs={a.path}", c.path, f"my runs={b.run_id}")
    assert found == {"my runs": [0, 1], "mlp ppo CartPole-v1": [2]}


def test_a_folder_whose_name_has_an_equals_sign_is_a_run(write_run: WriteRun) -> None:
    run = write_run(1.0)
    run.path.rename("lr=1")
    assert seeds("lr=1") == {"mlp ppo CartPole-v1": [0]}


def test_a_run_is_in_a_group_once(write_run: WriteRun) -> None:
    run = write_run(1.0)
    assert list(seeds(f"a={run.path}", f"b={run.path}")) == ["a", "b"]
    with pytest.raises(SettingsError, match=f"run {run.path} is given twice as 'a'; name it once"):
        seeds(f"a={run.path}", f"a={run.run_id}")


def test_a_run_without_iterations_is_refused(write_run: WriteRun) -> None:
    with pytest.raises(CheckpointError, match="has no iterations yet; wait for one or leave it"):
        seeds(write_run().path)


def test_a_damaged_line_is_named(write_run: WriteRun) -> None:
    run = write_run(1.0)
    with (run.path / "progress.jsonl").open("a") as file:
        file.write("{\n")
    with pytest.raises(CheckpointError, match=r"progress\.jsonl line 2 is not a JSON object"):
        seeds(run.path)


@pytest.mark.parametrize("reference", ["=a", " =a", "a="])
def test_half_a_label_is_refused(reference: str) -> None:
    with pytest.raises(SettingsError, match="lacks a label or a run; give RUN or LABEL=RUN"):
        seeds(reference)


@pytest.mark.parametrize("reference", ["none", "a=none"])
def test_an_unknown_run_is_refused(in_tmp_path: Path, reference: str) -> None:
    with pytest.raises(CheckpointError, match="no run 'none': neither a folder nor an id"):
        seeds(reference)


def test_a_run_that_cannot_be_read_is_refused(write_run: WriteRun) -> None:
    run = write_run()
    (run.path / "progress.jsonl").mkdir()
    for reference, reason in ((run.path, "is a directory"), ("x" * 300, "file name too long")):
        with pytest.raises(CheckpointError, match=f"cannot be read: {reason}; name a run's folder"):
            seeds(reference)


def test_a_tuning_experiment_is_no_run(in_tmp_path: Path) -> None:
    (in_tmp_path / "search").mkdir()
    (in_tmp_path / "search" / "tuning.yaml").touch()
    with pytest.raises(CheckpointError, match=r"search is a tuning experiment.* its report folder"):
        seeds("search")
