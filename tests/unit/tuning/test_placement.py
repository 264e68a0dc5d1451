"""Whether a trial fits, with the arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray

from rl_service.errors import ResourceError
from rl_service.tuning.resources import check_placement, trial_bundles
from rl_service.tuning.space import SearchSpace
from tests.tuning import small_plan


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
    assert trial_bundles(space.base.resources) == [{"CPU": 1.0}, {"CPU": 0.5}, {"CPU": 0.5}]


@pytest.mark.parametrize(("cpus", "fitting"), [((3,), 1), ((4, 2), 2), ((1, 1, 1), 1), ((9,), 3)])
def test_as_many_trials_as_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpus: tuple[float, ...], fitting: int
) -> None:
    space = searched(tmp_path, monkeypatch, 2)
    monkeypatch.setattr(ray, "nodes", nodes(*cpus))
    assert check_placement(space) == fitting


def test_what_would_wait_for_ever_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = searched(tmp_path, monkeypatch, 4)
    monkeypatch.setattr(ray, "nodes", nodes(2, 2))
    with pytest.raises(
        ResourceError, match=r"takes 5 CPUs \(1 for the learner, 4 x 1 .*has 4: it would wait"
    ):
        check_placement(space)
    # In all there is enough, but no node has room for a worker of two CPUs.
    space = searched(tmp_path, monkeypatch, 1, num_cpus_per_env_runner=2.0)
    monkeypatch.setattr(ray, "nodes", nodes(1, 1, 1))
    with pytest.raises(ResourceError, match="no way was found to place them"):
        check_placement(space)
