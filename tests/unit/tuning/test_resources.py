"""Whether a trial fits, with the arithmetic; whether all nodes see the storage."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import GetTimeoutError, TaskUnschedulableError

from rl_service.common.errors import OutputError, ResourceError
from rl_service.tuning import resources
from rl_service.tuning.resources import (
    check_placement,
    check_shared,
    trial_bundles,
    trial_resources,
)
from rl_service.tuning.space import SearchSpace
from rl_service.tuning.storage import PLAN_FILE, experiment_storage
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


def test_each_further_learner_of_each_seed_has_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = searched(tmp_path, monkeypatch, 1, num_learners=3)
    cpu = {"CPU": 1.0}
    assert trial_bundles(space.base.resources, 1) == [cpu] * 4
    assert trial_bundles(space.base.resources, 2) == [cpu] * 7
    with_gpus = space.base.resources.model_copy(update={"num_gpus": 3})
    learner = {"CPU": 1.0, "GPU": 1.0}
    assert trial_bundles(with_gpus, 1) == [learner, learner, learner, cpu]
    assert trial_resources(space, 1, {"algorithm.actor_lr": 0.5}).bundles == [cpu] * 4
    monkeypatch.setattr(ray, "nodes", nodes(3))
    with pytest.raises(ResourceError, match=r"takes 4 CPUs \(3 for learners, 1 x 1 for rollout w"):
        check_placement(space, 1)
    monkeypatch.setattr(ray, "nodes", nodes(4))
    assert check_placement(space, 1) == 1


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
        ({"choice": [1, 8]}, "num_learners"),
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
        match=rf"draws resources.{key}=8.* takes 9 CPUs \([18] for .*has 8: .*; lower "
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


GONE, SILENT = TaskUnschedulableError("the node is gone"), GetTimeoutError("Get timed out")


class Nodes:
    """A cluster whose nodes answer, or raise, what they are told to; the first one sees it all."""

    def __init__(self, answer: Any, *, stays: bool) -> None:
        self.answers = {"a": True, "b": answer}
        self.stays = stays
        self.asked = False

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "NodeID": name,
                "NodeManagerAddress": f"host-{name}",
                "Alive": name == "a" or self.stays or not self.asked,
            }
            for name in self.answers
        ]

    def remote(self, **_: Any) -> Any:
        return lambda function: self

    def options(self, *, scheduling_strategy: Any) -> Any:
        return SimpleNamespace(remote=lambda path: scheduling_strategy.node_id)

    def wait(self, looks: list[str], **_: Any) -> None:
        self.asked = True

    def get(self, look: str, **_: Any) -> Any:
        if isinstance(self.answers[look], Exception):
            raise self.answers[look]
        return self.answers[look]


def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: Nodes) -> None:
    for name in ("nodes", "remote", "wait", "get"):
        monkeypatch.setattr(ray, name, getattr(nodes, name))
    monkeypatch.setattr(
        resources,
        "NodeAffinitySchedulingStrategy",
        lambda node, soft: SimpleNamespace(node_id=node),
    )
    storage = experiment_storage(f"{tmp_path}/one")
    storage.write(PLAN_FILE, b"")
    try:
        check_shared(storage)
    finally:
        assert storage.names() == [PLAN_FILE]


def test_a_node_that_sees_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OutputError, match="has 2 nodes, and host-b cannot see"):
        check(tmp_path, monkeypatch, Nodes(False, stays=True))


@pytest.mark.parametrize("answer", [True, GONE, SILENT])
def test_a_node_that_goes_meanwhile_need_not_see_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    check(tmp_path, monkeypatch, Nodes(answer, stays=False))


def test_a_node_that_stays_and_is_silent_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ResourceError, match=r"node host-b does not say .* \(Get timed out\); see"):
        check(tmp_path, monkeypatch, Nodes(SILENT, stays=True))
