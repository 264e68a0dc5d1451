"""How a population's settings change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray.tune.schedulers import PopulationBasedTraining
from ray.tune.schedulers.pbt import _explore

from rl_service.tuning.search import build_scheduler
from tests.support.tuning import small_plan

PBT = {"name": "pbt", "interval_env_steps": 64, "resample_probability": 0.0}


def changes(folder: Path, space: dict[str, Any], config: dict[str, Any]) -> list[dict[str, Any]]:
    """What Tune makes of a configuration, many times over."""
    scheduler = build_scheduler(small_plan(folder, search_space=space, scheduler=PBT))
    assert isinstance(scheduler, PopulationBasedTraining)
    mutations, explore = scheduler._hyperparam_mutations, scheduler._custom_explore_fn
    return [_explore(config, mutations, 0.0, (1.2, 0.8), explore)[0] for _ in range(50)]


@pytest.mark.parametrize(
    ("domain", "before", "after"),
    [
        ({"integer": [1, 8]}, 2, {1, 3}),
        ({"integer": [1, 8]}, 8, {7, 8}),
        ({"integer": [1, 1000]}, 100, {80, 120}),
        ({"choice": [1, 4, 9]}, 4, {1, 9}),
    ],
)
def test_whole_numbers_change(
    tmp_path: Path, domain: dict[str, Any], before: int, after: set[int]
) -> None:
    key = "algorithm.num_epochs"
    found = changes(tmp_path, {key: domain}, {key: before})
    assert {config[key] for config in found} == after


def test_changes_never_contradict_each_other(tmp_path: Path) -> None:
    batch, minibatch = "algorithm.train_batch_size", "algorithm.minibatch_size"
    space = {key: {"power_of_two": [16, 64]} for key in (batch, minibatch)}
    found = changes(tmp_path, space, {batch: 5, minibatch: 5})
    assert all(config[minibatch] <= config[batch] for config in found)
    assert len({config[minibatch] for config in found}) > 1
