"""The settings of the autoscaler: read from all sources, and refused where they contradict."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_service.common.errors import SettingsError
from rl_service.config.load import change_settings, load_settings
from rl_service.config.settings import Settings


def problems(*overrides: str, algorithm: str = "ppo") -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_settings(overrides=overrides, algorithm=algorithm, env="MountainCar-v0", model="mlp")
    assert not any("\n" in problem for problem in caught.value.problems)
    return caught.value.problems


def test_the_number_of_workers_is_fixed_unless_asked_otherwise() -> None:
    assert Settings().resources.max_env_runners is None


def test_the_bounds_come_from_set() -> None:
    resources = load_settings(overrides=["resources.max_env_runners=8"]).settings.resources
    assert (resources.min_env_runners, resources.max_env_runners) == (1, 8)
    assert resources.autoscaling_policy == "throughput"


def test_the_schedule_of_an_earlier_release_is_read_if_it_is_empty(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("resources: {autoscaling_policy: throughput, autoscaling_schedule: {}}")
    assert load_settings(config=file).settings == load_settings().settings
    [problem] = problems("resources.autoscaling_schedule={0: 1}")
    assert problem.startswith("unknown setting resources.autoscaling_schedule")


def test_a_run_that_goes_on_may_get_other_bounds() -> None:
    changed = change_settings(
        Settings(), iterations=None, overrides=["resources.max_env_runners=6"]
    )
    assert changed.settings.resources.max_env_runners == 6
    assert changed.notes == ["resources.max_env_runners is 6 from here on (was null)"]


@pytest.mark.parametrize(
    ("overrides", "start", "remedy"),
    [
        (
            ["max_env_runners=2", "min_env_runners=3"],
            "resources.min_env_runners=3 is more than resources.max_env_runners=2",
            "use at most 2",
        ),
        (
            ["max_env_runners=4", "num_env_runners=5"],
            "resources.num_env_runners=5 is not between",
            "use 4 or move the bounds",
        ),
        (
            ["max_env_runners=4", "min_env_runners=3"],
            "resources.num_env_runners=2 is not between",
            "use 3 or move the bounds",
        ),
        (
            ["max_env_runners=4", "num_env_runners=0"],
            "resources.num_env_runners=0 samples in the learner's own process",
            "start with resources.num_env_runners=1",
        ),
        (["max_worker_hours=2"], "resources.max_worker_hours=2.0 does nothing", "leave it out"),
        (
            ["autoscaling_policy=a:b"],
            "resources.autoscaling_policy=a:b does nothing",
            "leave it out",
        ),
        (["min_env_runners=2"], "resources.min_env_runners=2 does nothing", "leave it out"),
        (
            ["autoscaling_policy=through"],
            "unknown resources.autoscaling_policy=through; did you mean throughput?",
            "or module:function of your own",
        ),
        (
            ["max_env_runners=4", "autoscaling_policy=:function"],
            "unknown resources.autoscaling_policy=:function;",
            "or module:function of your own",
        ),
        (
            ["target_sampling_share=1.0"],
            "resources.target_sampling_share=1.0 (from --set)",
            "must be less than 1",
        ),
    ],
)
def test_a_contradiction_is_one_line_with_its_remedy(
    overrides: list[str], start: str, remedy: str
) -> None:
    [problem] = problems(*(f"resources.{each}" for each in overrides))
    assert problem.startswith(start)
    assert problem.endswith(remedy)


def test_no_more_workers_than_vector_steps_of_a_batch() -> None:
    batch = ["algorithm.train_batch_size=256", "resources.num_envs_per_env_runner=16"]
    [problem] = problems(*batch, "resources.max_env_runners=17")
    assert problem.startswith("resources.max_env_runners=17 is more than the 16 vector steps")
    allowed = load_settings(overrides=[*batch, "resources.max_env_runners=16"]).settings
    assert allowed.resources.max_env_runners == 16


def test_the_batch_of_a2c_is_that_of_the_workers_at_the_start() -> None:
    shape = ["resources.num_env_runners=2", "resources.num_envs_per_env_runner=8"]
    shape += ["algorithm.rollout_fragment_length=4", "algorithm.train_batch_size=2048"]
    fixed, elastic = (
        load_settings(
            algorithm="a2c", env="MountainCar-v0", model="mlp", overrides=[*shape, *more]
        ).settings
        for more in ([], ["resources.max_env_runners=8"])
    )
    assert fixed.env_steps_per_update == elastic.env_steps_per_update == 64
    [problem] = problems(*shape, "resources.max_env_runners=9", algorithm="a2c")
    assert "more than the 8 vector steps of a batch (64 env steps / 8 envs)" in problem
