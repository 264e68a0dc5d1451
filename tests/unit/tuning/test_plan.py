"""Tuning files: what they say, what they may not say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_service.common.errors import SettingsError
from rl_service.config.load import load_settings
from rl_service.config.presets import preset_names
from rl_service.tuning.plan import load_plan
from tests.support.tuning import write_tuning_file

LR = {"algorithm.actor_lr": {"loguniform": [1e-4, 1e-2]}}
PBT = {"name": "pbt", "interval_env_steps": 64}


@pytest.mark.parametrize("name", [n for n in preset_names() if n.startswith("tuning/")])
def test_every_shipped_file_is_a_plan(name: str) -> None:
    plan = load_plan(Path(name))
    assert plan.name == Path(name).name
    assert plan.points


def test_a_plan_reads_back_from_what_it_dumps(tmp_path: Path) -> None:
    plan = load_plan(Path("tuning/CartPole-v1"), num_samples=5)
    (tmp_path / "again.yaml").write_text(plan.dump(), encoding="utf-8")
    again = load_plan(tmp_path / "again.yaml")
    assert (again.name, again.base, again.space) == (plan.name, plan.base, plan.space)
    assert again.points == plan.points
    assert again.tuning.num_samples == 5
    assert again.dump() == plan.dump()


def test_nulls_take_the_place_of_presets_and_read_back(tmp_path: Path) -> None:
    """A preset has a value for each of these."""
    file = write_tuning_file(
        tmp_path / "small.yaml",
        settings={"env": {"id": "LunarLander-v3"}, "algorithm": {"grad_clip": None}},
        search_space={**LR, "env.max_episode_steps": {"choice": [20, None]}},
        points_to_evaluate=[{"env.max_episode_steps": None}],
    )
    plan = load_plan(file)
    assert plan.base.algorithm.grad_clip is None
    (tmp_path / "again.yaml").write_text(plan.dump(), encoding="utf-8")
    again = load_plan(tmp_path / "again.yaml")
    assert (again.base, again.space, again.points) == (plan.base, plan.space, plan.points)
    assert again.points == [{"env.max_episode_steps": None}]


def test_empty_groups_are_as_if_left_out(tmp_path: Path) -> None:
    given = {"points_to_evaluate": None, "search_alg": None, "scheduler": None, "name": None}
    plan = load_plan(write_tuning_file(tmp_path / "small.yaml", **given))
    assert plan.dump() == load_plan(write_tuning_file(tmp_path / "small.yaml")).dump()


def test_problems_of_all_kinds_are_told_together(tmp_path: Path) -> None:
    file = write_tuning_file(
        tmp_path / "small.yaml",
        settings={"env": {"id": "CartPole-v9"}, "tracking": {"output_dir": "/dev/null/x"}},
        search_space={**LR, "seed": {"integer": [1, 9]}},
        points_to_evaluate=[{"algorithm.actor_lr": 1}],
        scheduler={"name": "asha", "grace_env_steps": 9999},
    )
    with pytest.raises(SettingsError) as error:
        load_plan(file)
    for words in ("seed: settings are", "grace", "CartPole-v9", "/dev/null", "outside"):
        assert any(words in problem for problem in error.value.problems), error.value.problems


def test_settings_files_and_tuning_files_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"is a tuning file.*rl-service tune tuning/CartPole"):
        load_settings(config=Path("tuning/CartPole-v1"))
    with pytest.raises(SettingsError, match=r"quickstart has no search_space; .*train --config"):
        load_plan(Path("quickstart"))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"search_space": {}}, "search_space is empty"),
        ({"search_space": None}, "search_space is empty"),
        ({"points_to_evaluate": [{}, {}, {}]}, "3 points for num_samples=2 trials"),
        ({"scheduler": PBT, "max_concurrent": 1}, "so it takes no max_concurrent"),
        (
            {"settings": {"resources": {"num_gpus": 4}}},
            "resources.num_gpus=4 and resources.num_learners=1, but each learner has one GPU",
        ),
        (
            {"settings": {"tracking": {"output_dir": "/dev/null/x"}}},
            "(/dev/null): Not a directory; give another one with settings.tracking.output_dir",
        ),
        ({"num_sample": 4}, "unknown key num_sample; did you mean num_samples?"),
        ({"num_samples": 0}, "num_samples: Input should be greater than 0"),
        ({"scheduler": {"name": "asha", "grace_env_step": 3}}, "did you mean grace_env_steps?"),
        ({"scheduler": {"name": "hyperband"}}, "scheduler: Input tag 'hyperband'"),
        ({"scheduler": {"name": "asha", "grace_env_steps": 192}}, "none would be stopped early"),
        ({"search_space": {"algorithm.gamma": {"uniformly": [0, 1]}}}, "did you mean uniform?"),
        (
            {"points_to_evaluate": [{"algorithm.actor_lr": 1}]},
            "algorithm.actor_lr: 1 is outside 0.0001 to 0.01",
        ),
        (
            {"scheduler": PBT, "search_space": {"model.hidden_sizes": {"choice": [[8], [16]]}}},
            "scheduler pbt changes algorithm.* settings",
        ),
        (
            {
                "scheduler": PBT,
                "search_space": {**LR, "resources.num_env_runners": {"choice": [0, 1]}},
            },
            "search_space resources.num_env_runners: scheduler pbt hands one trial's settings",
        ),
        ({"scheduler": PBT, "num_samples": 1}, "needs a population"),
        (
            {"scheduler": PBT, "search_alg": {"objectives": ["score", "env_steps_per_s"]}},
            "one objective",
        ),
        ({"scheduler": {"name": "pb2", "interval_env_steps": 64}}, "'pb2'"),
        (
            {
                "scheduler": PBT,
                "search_space": {
                    "algorithm.actor_lr": {
                        "loguniform": [1e-4, 1e-2],
                        "when": {"model.name": "mlp"},
                    }
                },
            },
            "leave out its `when`",
        ),
        ({"settings": {"env": {"id": "CartPole-v9"}}}, "CartPole-v9"),
        ({"config": "tuned/NoSuchThing"}, "NoSuchThing"),
    ],
)
def test_what_is_refused_in_one_line(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError) as error:
        load_plan(write_tuning_file(tmp_path / "small.yaml", **changed))
    assert any(words in problem for problem in error.value.problems), error.value.problems
    assert all("\n" not in problem for problem in error.value.problems)
