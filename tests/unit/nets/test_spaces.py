"""Actions of several choices, and masks: what nets read of them, and what is drawn."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from custom_models.distributions import (
    MASKED,
    Categorical,
    MultiCategorical,
    distribution,
    masked_as,
)
from custom_models.draws import Draws
from custom_models.spaces import ActionSpec

WHEELS = spaces.MultiDiscrete([[2, 3], [4, 1]], start=[[0, 5], [-1, 0]])
SIZES = [2, 3, 4, 1]


@pytest.mark.parametrize(
    "space",
    [WHEELS, spaces.MultiBinary(3), spaces.MultiBinary((2, 2)), spaces.Discrete(5, start=2)],
    ids=str,
)
def test_policy_actions_become_env_actions_of_the_space_and_back(space: gym.Space[Any]) -> None:
    space.seed(0)
    spec = ActionSpec.from_space(space)
    env_actions = np.stack([space.sample() for _ in range(50)])
    actions = spec.from_env(env_actions)
    assert actions.dtype == spec.row_dtype == np.int64
    assert actions.shape[1:] == spec.row_shape
    assert actions.min() == 0
    back = spec.to_env(actions)
    assert np.array_equal(back, env_actions)
    assert all(space.contains(action) for action in back)


def test_numbers_of_choices_are_1_of_n_each() -> None:
    spec = ActionSpec.from_space(WHEELS)
    assert (spec.sizes, spec.num_dist_inputs, spec.num_numbers) == ((2, 3, 4, 1), 10, 10)
    numbers = spec.numbers(np.array([[1, 0, 3, 0]]))
    assert numbers.tolist() == [[0, 1, 1, 0, 0, 0, 0, 0, 1, 1]]
    box = ActionSpec.from_space(spaces.Box(-1, 1, (2,)))
    assert box.numbers(np.array([[0.5, 2.0]])).tolist() == [[0.5, 2.0]]


def test_several_choices_are_independent_categoricals() -> None:
    torch.manual_seed(0)
    spec = ActionSpec.from_space(WHEELS)
    old, new = torch.randn(2, 7, 10)
    dist, other = distribution(spec, old), distribution(spec, new)
    assert isinstance(dist, MultiCategorical) and isinstance(other, MultiCategorical)
    actions = dist.sample()  # (7, 4)
    parts = [torch.distributions.Categorical(logits=part) for part in old.split(SIZES, -1)]
    others = [torch.distributions.Categorical(logits=part) for part in new.split(SIZES, -1)]
    expected = sum(part.log_prob(actions[:, i]) for i, part in enumerate(parts))
    torch.testing.assert_close(dist.log_prob(actions), expected)
    torch.testing.assert_close(dist.entropy(), sum(part.entropy() for part in parts))
    divergence = torch.distributions.kl_divergence
    expected = sum(divergence(p, q) for p, q in zip(parts, others, strict=True))
    torch.testing.assert_close(dist.kl(other), expected)
    modes = torch.stack([part.argmax(-1) for part in old.split(SIZES, -1)], -1)
    assert torch.equal(dist.mode(), modes)
    direction = torch.randn(7, 10)
    product = dist.fisher_product(direction)
    for p, whole, along in zip(
        parts, product.split(SIZES, -1), direction.split(SIZES, -1), strict=True
    ):
        fisher = torch.diag_embed(p.probs) - p.probs[:, :, None] * p.probs[:, None]
        torch.testing.assert_close(whole, (fisher @ along[..., None])[..., 0])


def test_draws_of_several_choices_follow_the_distribution_and_their_mask() -> None:
    torch.manual_seed(0)
    spec = ActionSpec.from_space(spaces.MultiDiscrete([2, 3]))
    logits = np.array([[0.0, 1.0, 0.5, MASKED, -0.5]], np.float32).repeat(40_000, 0)
    drawn = Draws(spec, len(logits))(logits)  # (B, 2)
    first, second = (np.bincount(drawn[:, i], minlength=3) / len(drawn) for i in range(2))
    np.testing.assert_allclose(first[:2], [0.2689, 0.7311], atol=0.01)
    assert second[1] == 0.0
    np.testing.assert_allclose(second[[0, 2]], [0.7311, 0.2689], atol=0.01)


def test_masked_logits_give_the_distribution_over_what_is_allowed() -> None:
    logits = torch.tensor([[1.0, 30.0, 2.0, -5.0]])
    others = torch.tensor([[0.0, MASKED, 0.0, MASKED]])
    dist = Categorical(masked_as(logits, others))
    small = torch.distributions.Categorical(logits=torch.tensor([[1.0, 2.0]]))
    for action, of_small in ((0, 0), (2, 1)):
        expected = small.log_prob(torch.tensor([of_small]))
        torch.testing.assert_close(dist.log_prob(torch.tensor([action])), expected)
    torch.testing.assert_close(dist.entropy(), small.entropy())
    assert dist.mode().tolist() == [2]
    assert set(Categorical(dist.log_probs.expand(5000, -1)).sample().tolist()) == {0, 2}
    even = Categorical(masked_as(torch.zeros(1, 4), others))
    expected = torch.distributions.kl_divergence(
        small, torch.distributions.Categorical(logits=torch.zeros(1, 2))
    )
    torch.testing.assert_close(dist.kl(even), expected)


def test_no_gradient_reaches_a_masked_logit() -> None:
    logits = torch.randn(5, 4, requires_grad=True)
    others = torch.zeros(5, 4).index_fill(1, torch.tensor([1]), MASKED)
    spec = ActionSpec("discrete", 4)
    dist = distribution(spec, logits, others)
    (dist.log_prob(torch.tensor([0, 2, 3, 0, 2])).sum() + dist.entropy().sum()).backward()
    assert logits.grad is not None and torch.isfinite(logits.grad).all()
    assert logits.grad[:, 1].abs().max() == 0.0
    assert logits.grad[:, [0, 2, 3]].abs().min() > 0.0


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (np.array([1, 0, 1, 1, 0], np.int8), [True, False, True, True, False]),
        (
            (np.array([0, 1], np.int8), np.array([1, 0, 0], np.int8)),
            [False, True, True, False, False],
        ),
        ([[True, True], [False, False, True]], [True, True, False, False, True]),
    ],
)
def test_a_mask_has_one_entry_for_each_choice(mask: Any, expected: list[bool]) -> None:
    spec = ActionSpec.from_space(spaces.MultiDiscrete([2, 3]))
    assert spec.read_mask(mask).tolist() == expected


@pytest.mark.parametrize(
    ("space", "mask", "problem"),
    [
        (spaces.Discrete(3), [0, 0, 0], "allows no action"),
        (spaces.MultiDiscrete([2, 3]), [1, 1, 0, 0, 0], "allows no action"),
        (spaces.Discrete(3), [1, 1], "has 2 entries, and the actions need 3"),
        (spaces.Discrete(3), [], "has 0 entries"),
        (spaces.Box(-1, 1, (2,)), [1, 1], "these are a Box"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(
    space: gym.Space[Any], mask: Any, problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        ActionSpec.from_space(space).read_mask(mask)
