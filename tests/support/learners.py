"""Trainings with more than one learner, and a look into the further ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import ray
import torch

from rl_service.algorithms.base import OnPolicyAlgorithm
from rl_service.algorithms.ppo import PPO, PPOPolicy
from rl_service.config.algorithms import PPOSettings
from rl_service.config.settings import Settings
from tests.support.rays import actor_pids
from tests.support.small_runs import GPT2, GPT2_ACTOR, weights

CRITIC = GPT2.model_copy(update={"dropout": 0.0})  # each learner would drop other features
ACTS = GPT2_ACTOR.model_copy(update={"dropout": 0.0})
UNEVEN = {"minibatch_size": 25}  # of 128 steps: five minibatches of 25 or 26


def with_learners(settings: Settings, num_learners: int, **resources: Any) -> Settings:
    """The settings with so many learners; `resources` are further ones of that group."""
    changed = settings.resources.model_copy(update={"num_learners": num_learners, **resources})
    return settings.model_copy(update={"resources": changed})


def learner_pids(*, of_all_jobs: bool = False) -> list[int]:
    """The further learners of this process's trainings, or of all."""
    return actor_pids("Learner", of_all_jobs=of_all_jobs)


def ask_learners(algorithm: OnPolicyAlgorithm, question: Any) -> list[Any]:
    """What a function of each further learner returns."""
    actors = algorithm.learners._actors
    return ray.get([actor.__ray_call__.remote(question) for actor in actors])


def trained(algorithm: OnPolicyAlgorithm, iterations: int) -> list[dict[str, float]]:
    """The numbers of so many iterations, without times."""
    rows = [algorithm.train()["info"]["learner"] for _ in range(iterations)]
    return [{k: v for k, v in row.items() if not k.endswith("_s")} for row in rows]


def check_that_they_compute_what_one_does(
    build: Callable[[Settings], OnPolicyAlgorithm],
    settings: Settings,
    num_learners: int,
    iterations: int,
) -> list[dict[str, float]]:
    """Trains with one learner, then with several, which must end alike and all equal.

    Args:
        build: of the fixture.
        settings: of both.
        num_learners: of the second training.
        iterations: of both.

    Returns:
        The numbers of the first one.
    """
    one = build(settings)
    expected = trained(one, iterations)
    one.stop()
    several = build(with_learners(settings, num_learners))  # which seeds the process again
    actual = trained(several, iterations)
    for row, its in zip(expected, actual, strict=True):
        assert its == pytest.approx(row, rel=1e-4, abs=1e-4)
    assert_close_weights(weights(several), weights(one))
    assert_all_are_equal(several)
    return expected


def assert_close_weights(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    """To 1e-5."""
    for name, weight in a.items():
        torch.testing.assert_close(weight, b[name], rtol=0.0, atol=1e-5)


def assert_all_are_equal(algorithm: OnPolicyAlgorithm) -> None:
    """All learners have the same nets, moments, statistics and random orders, bit for bit."""
    own = algorithm.learner_policy.get_learner_state()
    others = ask_learners(algorithm, lambda learner: learner._policy.get_learner_state())
    assert len(others) == algorithm.settings.resources.num_learners - 1
    for other in others:
        # The first one's steps have moved on, and each GPU draws its own numbers.
        apart = {key: own[key] for key in ("global_timestep", "cuda_rng")}
        assert_same(own, {**other, **apart})


def assert_same(one: Any, other: Any, path: str = "state") -> None:
    """Compares nested states."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key, value in one.items():
            assert_same(value, other[key], f"{path}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for number, (value, its) in enumerate(zip(one, other, strict=True)):
            assert_same(value, its, f"{path}.{number}")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one.cpu(), other.cpu()), path
    elif isinstance(one, np.ndarray):
        assert np.array_equal(one, other), path
    else:
        assert one == other, path


class NotCompiled(PPOSettings):
    """PPO, whose steps torch takes."""

    implementation: ClassVar[str] = f"{__name__}:NotCompiledPPO"


class NotCompiledPolicy(PPOPolicy):
    def compiled_loss(self, name: str) -> None:
        return None


class NotCompiledPPO(PPO):
    policy_class = NotCompiledPolicy
