"""Whether a trial fits, with the arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray

from rl_service.common.errors import ResourceError
from rl_service.tuning.resources import check_placement, trial_bundles, trial_resources
from rl_service.tuning.space import SearchSpace
from tests.support.tuning import small_plan


def nodes(*cpus: float, gpus: float = 0.0) -> Any:
    return lambda: [
        {"Alive": True, "Resources": {"CPU": count, "GPU": gpus} if gpus else {"CPU": count}}
        for count in cpus
    ]


def searched(
    folder: Path, monkeypatch: pytest.MonkeyPatch, workers: int, **more: Any
) -> SearchSpace:
    monkeypatch.setenv("RAY_ADDRESS", "somewhere:6379")  # that cluster decides, not this machine
    resources = {"num_env_runners": workers, **more}
    settings: Any = {"resources": resources, "algorithm": {"train_batch_size": 640}}
    return small_plan(folder, settings=settings).space


def test_a_trial_is_its_learner_and_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = searched(tmp_path, monkeypatch, 2, num_cpus_per_env_runner=0.5)
    worker = {"CPU": 0.5}
    assert trial_bundles(space.base.resources, 1) == [{"CPU": 1.0}, worker, worker]
    assert trial_bundles(space.base.resources, 2) == [{"CPU": 1.0}, *[worker] * 4]
    free = space.base.resources.model_copy(update={"num_cpus_per_env_runner": 0.0})
    assert trial_bundles(free, 2) == [{"CPU": 1.0}]


def test_of_an_elastic_trial_the_least_workers_are_kept_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = searched(tmp_path, monkeypatch, 2, min_env_runners=1, max_env_runners=4)
    assert trial_bundles(space.base.resources, 1) == [{"CPU": 1.0}, {"CPU": 1.0}]


@pytest.mark.parametrize(("cpus", "fitting"), [((3,), 1), ((4, 2), 2), ((1, 1, 1), 1), ((9,), 3)])
def test_as_many_trials_as_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpus: tuple[float, ...], fitting: int
) -> None:
    space = searched(tmp_path, monkeypatch, 2)
    monkeypatch.setattr(ray, "nodes", nodes(*cpus))
    assert check_placement(space, 1) == fitting


def test_what_would_wait_for_ever_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = searched(tmp_path, monkeypatch, 4)
    monkeypatch.setattr(ray, "nodes", nodes(2, 2))
    with pytest.raises(
        ResourceError, match=r"takes 5 CPUs \(1 for the learner, 4 x 1 .*has 4: it would wait"
    ):
        check_placement(space, 1)
    with pytest.raises(ResourceError, match=r"takes 9 CPUs \(1 for the learner, 2 seeds x 4 x 1 "):
        check_placement(space, 2)
    # In all there is enough, but no node has room for a worker of two CPUs.
    space = searched(tmp_path, monkeypatch, 1, num_cpus_per_env_runner=2.0)
    monkeypatch.setattr(ray, "nodes", nodes(1, 1, 1))
    with pytest.raises(ResourceError, match="no way was found to place them"):
        check_placement(space, 1)


@pytest.mark.parametrize(
    ("drawn", "key"),
    [
        ({"choice": [0, 8]}, "num_env_runners"),
        ({"integer": [0, 8]}, "num_env_runners"),
        ({"power_of_two": [1, 8]}, "num_env_runners"),
        ({"uniform": [0.5, 8.0]}, "num_cpus_per_env_runner"),
    ],
)
def test_each_value_that_can_be_drawn_must_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: dict[str, Any], key: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "somewhere:6379")
    settings: Any = {"algorithm": {"train_batch_size": 640}, "resources": {"num_env_runners": 1}}
    space = small_plan(tmp_path, settings=settings, search_space={f"resources.{key}": drawn}).space
    monkeypatch.setattr(ray, "nodes", nodes(4, 4))
    with pytest.raises(
        ResourceError,
        match=rf"draws resources.{key}=8.* takes 9 CPUs \(1 for the learner.*has 8: .*; lower "
        rf"resources\.\w+ in (search_space|settings), or add nodes",
    ):
        check_placement(space, 1)
    monkeypatch.setattr(ray, "nodes", nodes(9, 9))
    assert check_placement(space, 1) == 2


def test_a_contradiction_takes_the_least(tmp_path: Path) -> None:
    sizes = ("algorithm.minibatch_size", "algorithm.train_batch_size")
    space = small_plan(
        tmp_path, search_space={key: {"power_of_two": [16, 64]} for key in sizes}
    ).space
    contradiction = dict(zip(sizes, (6, 4), strict=True))
    assert trial_resources(space, 1, contradiction).bundles == [{"CPU": 1.0}]
