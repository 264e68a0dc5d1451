"""PolicyRunner: what goes in, what comes out, what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from custom_models.distributions import IS_MASKED, MASKED
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


CHOICES = ActionSpec("multi_discrete", 2, shape=(2,), low=(0, 5), dtype="int64", sizes=(3, 2))
LIKELY = [math.log(p) for p in (0.2, 0.7, 0.1, 0.9, 0.1)]


def test_each_choice_is_taken_among_what_its_mask_allows() -> None:
    runner = PolicyRunner(FixedActor(*LIKELY), (1,), CHOICES, None)
    mask = np.array([[1, 1, 1, 1, 1], [1, 0, 1, 1, 1], [0, 0, 1, 0, 1]], np.bool_)
    answer = runner.act(np.zeros((3, 1)), deterministic=True, mask=mask)
    assert answer.actions.tolist() == [[1, 0], [0, 0], [2, 1]]
    assert answer.env_actions.tolist() == [[1, 5], [0, 5], [2, 6]]
    expected = [math.log(0.7 * 0.9), math.log(0.2 / 0.3 * 0.9), 0.0]
    np.testing.assert_allclose(answer.log_prob, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(answer.dist_inputs <= IS_MASKED, ~mask)


def test_a_forbidden_action_is_never_drawn() -> None:
    runner = PolicyRunner(FixedActor(*LIKELY), (1,), CHOICES, None)
    mask = np.tile(np.array([1, 0, 1, 1, 0], np.bool_), (2000, 1))
    generator = torch.Generator().manual_seed(0)
    answer = runner.act(np.zeros((2000, 1)), deterministic=False, generator=generator, mask=mask)
    assert np.bincount(answer.actions[:, 0]).tolist()[1] == 0
    assert (answer.actions[:, 0] == 0).mean() == pytest.approx(2 / 3, abs=0.05)
    assert not answer.actions[:, 1].any()


@pytest.mark.parametrize(
    ("spec", "mask", "message"),
    [
        (CHOICES, np.ones((1, 4), np.bool_), r"shape \(1, 4\); .* need \(1, 5\)"),
        (CHOICES, np.ones((2, 5), np.bool_), r"shape \(2, 5\); .* need \(1, 5\)"),
        (CHOICES, np.array([[1, 1, 1, 0, 0]], np.bool_), "no action is allowed"),
        (TORQUE, np.ones((1, 4), np.bool_), "of this policy need none"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(
    spec: ActionSpec, mask: np.ndarray, message: str
) -> None:
    actor = FixedActor(*[0.0] * spec.num_dist_inputs)
    with pytest.raises(ObservationError, match=message):
        PolicyRunner(actor, (1,), spec, None).act(np.zeros((1, 1)), deterministic=True, mask=mask)


def test_an_actor_that_allows_nothing_has_no_answer() -> None:
    runner = PolicyRunner(FixedActor(MASKED, MASKED), (1,), discrete(2), None)
    with pytest.raises(ObservationError, match="no action is allowed"):
        runner.act(np.zeros((1, 1)), deterministic=True)


def test_a_mask_leaves_the_numbers_of_an_actor_alone() -> None:
    """Where it answers with its input, that is the caller's."""
    obs = np.zeros((1, 2), np.float32)
    runner = PolicyRunner(EchoActor(), (2,), discrete(2), None)
    runner.act(obs, deterministic=True, mask=np.array([[True, False]]))
    assert obs.tolist() == [[0.0, 0.0]]
