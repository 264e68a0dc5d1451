"""PolicyRunner: what goes in, what comes out, what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from custom_models.history import History
from custom_models.interfaces import Actor
from custom_models.spaces import ActionSpec
from rl_service.common.errors import ObservationError
from rl_service.policies import PolicyRunner
from rl_service.rollout.filters import ObservationNormalizer

TORQUE = ActionSpec("box", 2, shape=(2,), low=(-2.0, 0.0), high=(2.0, 4.0))


class ObservationActor(Actor):
    """Reads the current observation as it is."""

    def encode(self, history: History) -> torch.Tensor:
        return torch.from_numpy(history.obs[:, -1])


class FixedActor(ObservationActor):
    """Answers the same numbers to every observation."""

    def __init__(self, *dist_inputs: float) -> None:
        super().__init__()
        self.dist_inputs = nn.Parameter(torch.tensor(dist_inputs))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.dist_inputs.repeat(len(inputs), 1)


class EchoActor(ObservationActor):
    """Answers the observation itself."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.scale


def discrete(num_actions: int, start: int = 0) -> ActionSpec:
    return ActionSpec("discrete", num_actions, start=start)


def test_the_most_likely_discrete_action_is_taken_with_its_log_probability() -> None:
    logits = [math.log(0.2), math.log(0.7), math.log(0.1)]
    runner = PolicyRunner(FixedActor(*logits), (4,), discrete(3, start=5), None)
    actions = runner.act(np.zeros((2, 4)), deterministic=True)
    assert actions.actions.tolist() == [1, 1]
    assert actions.env_actions.tolist() == [6, 6]
    assert actions.log_prob == pytest.approx([math.log(0.7)] * 2, abs=1e-6)
    assert actions.dist_inputs.shape == (2, 3)


def test_samples_follow_the_distribution_and_the_generator() -> None:
    runner = PolicyRunner(FixedActor(math.log(0.25), math.log(0.75)), (1,), discrete(2), None)
    obs = np.zeros((20_000, 1))

    def sample(seed: int) -> Any:
        generator = torch.Generator().manual_seed(seed)
        return runner.act(obs, deterministic=False, generator=generator).actions

    assert sample(1).mean() == pytest.approx(0.75, abs=0.015)  # 5 standard errors
    assert (sample(1) == sample(1)).all()
    assert (sample(1) != sample(2)).any()


def test_a_gaussian_mean_is_scaled_to_the_bounds_and_clipped_for_the_env_only() -> None:
    runner = PolicyRunner(FixedActor(0.5, 3.0, 0.0, 0.0), (1,), TORQUE, None)
    actions = runner.act([[0.0]], deterministic=True)
    assert actions.actions.tolist() == [[0.5, 3.0]]
    assert actions.env_actions.tolist() == [[1.0, 4.0]]
    assert actions.log_prob == pytest.approx([-math.log(2 * math.pi)], abs=1e-6)


def test_observations_are_filtered_before_the_actor_sees_them() -> None:
    normalizer = ObservationNormalizer(np.array([1.0, -1.0]), np.array([2.0, 0.5]))
    runner = PolicyRunner(EchoActor(), (2,), discrete(2), normalizer)
    actions = runner.act([[5.0, -0.75], [1e6, -1e6]], deterministic=True)
    assert actions.dist_inputs.tolist() == [[2.0, 0.5], [10.0, -10.0]]


def test_an_observation_of_any_shape_is_flattened() -> None:
    runner = PolicyRunner(EchoActor(), (2, 3), discrete(6), None)
    actions = runner.act(np.arange(12).reshape(2, 2, 3), deterministic=True)
    assert actions.dist_inputs.tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]


def test_acting_neither_needs_gradients_nor_makes_them() -> None:
    actor = FixedActor(0.0, 1.0)
    PolicyRunner(actor, (1,), discrete(2), None).act([[0.0]], deterministic=False)
    assert actor.dist_inputs.grad is None


@pytest.mark.parametrize(
    ("observations", "problem"),
    [
        ([0.0, 1.0], "have shape (2,); expected (B, 2)"),
        ([[0.0, 1.0, 2.0]], "have shape (1, 3); expected (B, 2)"),
        (np.zeros((0, 2)), "have shape (0, 2); expected (B, 2) with at least one row"),
        (np.zeros((1, 1, 2)), "have shape (1, 1, 2); expected (B, 2)"),
        ([[0.0, math.nan]], "NaN or infinite numbers; expected finite"),
        ([[math.inf, 0.0]], "NaN or infinite numbers"),
        ([[1e39, 0.0]], "NaN or infinite numbers"),
        ([[0.0, 1.0], [2.0]], "no array of numbers; expected shape (B, 2)"),
        ([["0.0", "1.0"]], "no array of numbers"),
        ([[None, None]], "no array of numbers"),
        ([[1j, 0.0]], "no array of numbers"),
        (3.0, "no array of numbers"),
    ],
)
def test_a_bad_observation_is_refused_with_the_expected_shape(
    observations: Any, problem: str
) -> None:
    runner = PolicyRunner(EchoActor(), (2,), discrete(2), None)
    with pytest.raises(ObservationError) as raised:
        runner.act(observations, deterministic=True)
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)
