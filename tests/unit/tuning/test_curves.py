"""Runs as curves, several as a mean with a band: numbers by hand; which runs belong together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rl_service.common.errors import CheckpointError, SettingsError
from rl_service.tuning.curves import ENV_STEPS, Curve, band_of, curves_of, load_groups
from tests.unit.tuning.conftest import WriteRun


def curve(steps: list[float], values: list[float]) -> Curve:
    return Curve(np.array(steps), np.array(values))


def test_mean_lowest_and_highest_at_all_points_that_the_runs_share() -> None:
    band = band_of([curve([0, 100, 200], [0, 10, 40]), curve([50, 150, 300], [25, 5, 20])])
    assert band is not None
    # At 50..200; by hand: the first is 5, 10, 25, 40 there and the second 25, 15, 5, 10.
    assert band.env_steps.tolist() == [50, 100, 150, 200]
    assert band.mean.tolist() == [15, 12.5, 15, 25]
    assert band.low.tolist() == [5, 10, 5, 10]
    assert band.high.tolist() == [25, 15, 25, 40]


def test_one_run_is_its_own_band() -> None:
    band = band_of([curve([1, 2], [3, 5])])
    assert band is not None
    assert band.mean.tolist() == band.low.tolist() == band.high.tolist() == [3, 5]


def test_runs_that_share_no_steps_have_no_band() -> None:
    assert band_of([curve([1, 2], [0, 0]), curve([3, 4], [0, 0])]) is None


def test_runs_that_share_one_point_have_a_band_there() -> None:
    band = band_of([curve([1, 2], [0, 4]), curve([2, 3], [2, 0])])
    assert band is not None
    assert (band.env_steps.tolist(), band.mean.tolist()) == ([2], [3])


def test_iterations_without_a_value_are_not_points() -> None:
    rows = [
        {ENV_STEPS: 10, "episode_return_mean": None, "entropy": 1},
        {ENV_STEPS: 20, "episode_return_mean": 5.0, "entropy": 2, "of another release": "x"},
        {ENV_STEPS: 30, "episode_return_mean": 7.0},
    ]
    found = curves_of(rows, "progress.jsonl")
    assert set(found) == {ENV_STEPS, "episode_return_mean", "entropy"}
    assert found["episode_return_mean"].env_steps.tolist() == [20, 30]
    assert found["episode_return_mean"].values.tolist() == [5, 7]
    assert found["entropy"].env_steps.tolist() == [10, 20]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, f"{ENV_STEPS} is missing or does not grow"),
        ({ENV_STEPS: 10}, f"{ENV_STEPS} is missing or does not grow"),
        ({ENV_STEPS: "20"}, f"{ENV_STEPS} is '20'"),
        ({ENV_STEPS: 20, "entropy": float("nan")}, "entropy is nan"),
        ({ENV_STEPS: 20, "entropy": [1]}, r"entropy is \[1\]"),
    ],
)
def test_a_row_that_is_no_iteration_is_named(row: dict[str, object], said: str) -> None:
    with pytest.raises(CheckpointError, match=rf"^p\.jsonl line 2 is damaged: {said}; remove"):
        curves_of([{ENV_STEPS: 10}, row], "p.jsonl")


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
