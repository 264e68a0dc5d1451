"""Distributions against torch's own, and what the heads promise."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Independent, Normal, kl_divergence

from custom_models.attention import dropout
from custom_models.configs import MLPConfig
from custom_models.distributions import Categorical, DiagGaussian
from custom_models.draws import Draws
from custom_models.heads import LOG_STD_MAX, LOG_STD_MIN, FeedForwardActor, StackActor
from custom_models.history import History, RunningHistory
from custom_models.nets import build_actor_critic
from custom_models.spaces import ActionSpec


def test_categorical_agrees_with_torch() -> None:
    a, b = torch.randn(7, 4), torch.randn(7, 4)
    ours, other = Categorical(a), Categorical(b)
    theirs, theirs_other = TorchCategorical(logits=a), TorchCategorical(logits=b)
    actions = torch.randint(4, (7,))
    torch.testing.assert_close(ours.log_prob(actions), theirs.log_prob(actions))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    torch.testing.assert_close(ours.kl(other), kl_divergence(theirs, theirs_other))
    assert torch.equal(ours.mode(), a.argmax(-1))


def test_gaussian_agrees_with_torch() -> None:
    a, b = torch.randn(7, 6), torch.randn(7, 6)
    ours, other = DiagGaussian(a), DiagGaussian(b)
    theirs, theirs_other = (Independent(Normal(x[:, :3], x[:, 3:].exp()), 1) for x in (a, b))
    actions = torch.randn(7, 3)
    torch.testing.assert_close(ours.log_prob(actions), theirs.log_prob(actions))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    torch.testing.assert_close(ours.kl(other), kl_divergence(theirs, theirs_other))
    assert torch.equal(ours.mode(), a[:, :3])


def test_samples_follow_the_distribution() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.tensor([0.1, 0.2, 0.7]).log().expand(20000, 3)
    counts = torch.bincount(Categorical(logits).sample(generator), minlength=3) / 20000
    torch.testing.assert_close(counts, torch.tensor([0.1, 0.2, 0.7]), rtol=0, atol=0.02)
    inputs = torch.tensor([1.0, np.log(2.0)], dtype=torch.float32).expand(20000, 2)
    samples = DiagGaussian(inputs).sample(generator)
    assert abs(float(samples.mean()) - 1.0) < 0.06
    assert abs(float(samples.std()) - 2.0) < 0.06


@pytest.mark.parametrize("num_actions", [20000, 7001])
def test_draws_follow_the_distribution(num_actions: int) -> None:
    torch.manual_seed(0)
    draws = Draws(ActionSpec("discrete", 3), num_actions)
    logits = np.log(np.array([[0.1, 0.2, 0.7]], np.float32)).repeat(1000, 0)
    actions = np.concatenate([draws(logits) for _ in range(20)])
    np.testing.assert_allclose(np.bincount(actions) / 20000, [0.1, 0.2, 0.7], atol=0.02)
    draws = Draws(ActionSpec("box", 2), num_actions)
    inputs = np.array([[1.0, -3.0, np.log(2.0), np.log(0.5)]], np.float32).repeat(1000, 0)
    samples = np.concatenate([draws(inputs) for _ in range(20)])
    np.testing.assert_allclose(samples.mean(0), [1.0, -3.0], atol=0.06)
    np.testing.assert_allclose(samples.std(0), [2.0, 0.5], atol=0.06)
    assert len(np.unique(samples[:, 0])) > 0.999 * len(samples)  # no number is used twice


@pytest.mark.parametrize("space", ["discrete", "box"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation": "relu", "hidden_sizes": (5, 9, 3), "activate_last": False},
        {"hidden_sizes": ()},
        {"log_std": "state", "log_std_init": LOG_STD_MAX},
        {"log_std_init": LOG_STD_MIN},
    ],
)
def test_an_actor_decides_on_arrays_as_on_tensors(space: str, changes: dict[str, Any]) -> None:
    spec = ActionSpec(space, 3, low=(-1.0,) * 3, high=(1.0,) * 3)  # type: ignore[arg-type]
    actor = build_actor_critic(MLPConfig(**changes), 4, spec, with_critic=False).actor
    with torch.no_grad():
        for weight in actor.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    cache = actor.open_cache()
    assert cache is not None
    obs = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    history = History.first_steps(obs, 1, spec)
    before = history.obs.copy()
    with torch.no_grad():
        expected = actor.decide(history).numpy()
    np.testing.assert_allclose(cache.decide(history), expected, rtol=1e-5, atol=1e-6)
    assert np.array_equal(history.obs, before)


def test_an_actor_of_a_users_own_is_asked_itself() -> None:
    class Own(FeedForwardActor):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs * 2.0)

    shape = {"hidden_sizes": (4,), "activation": "tanh", "activate_last": True}
    own = Own(3, ActionSpec("discrete", 2), **shape, log_std="free", log_std_init=0.0)
    assert own.open_cache() is None


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Discrete(3, start=-1),
        gym.spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 0.5]), dtype=np.float64),
        gym.spaces.Box(-1.0, 3.0, (2, 2)),
        gym.spaces.Box(-np.inf, np.inf, (3,)),
    ],
    ids=str,
)
def test_env_actions_become_the_policy_actions_that_lead_to_them(space: gym.Space[Any]) -> None:
    space.seed(0)
    spec = ActionSpec.from_space(space)
    env_actions = np.stack([space.sample() for _ in range(5)])
    actions = spec.from_env(env_actions)
    assert actions.shape == ((5,) if spec.kind == "discrete" else (5, spec.size))
    np.testing.assert_allclose(spec.to_env(actions), env_actions, rtol=1e-5, atol=1e-6)


def test_an_action_without_a_choice_is_0_to_the_policy() -> None:
    spec = ActionSpec.from_space(gym.spaces.Box(np.ones(1, np.float32), np.ones(1, np.float32)))
    assert spec.from_env(np.ones((1, 1), np.float32)).tolist() == [[0.0]]


@pytest.mark.parametrize("log_std", ["free", "state"])
def test_gaussian_actor_starts_near_zero_with_the_asked_deviation(log_std: str) -> None:
    spec = ActionSpec.from_space(gym.spaces.Box(-2.0, 2.0, (3,)))
    net = build_actor_critic(MLPConfig(log_std=log_std, log_std_init=-0.5), 8, spec)
    mean, log_stds = net.actor(torch.randn(100, 8)).chunk(2, dim=-1)
    assert mean.abs().max() < 0.2
    torch.testing.assert_close(log_stds, torch.full_like(log_stds, -0.5), rtol=0, atol=0.2)


@pytest.mark.parametrize("log_std", ["free", "state"])
def test_gradients_reach_every_parameter_of_actor_and_mlp_critic(log_std: str) -> None:
    spec = ActionSpec.from_space(gym.spaces.Box(-2.0, 2.0, (3,)))
    net = build_actor_critic(MLPConfig(log_std=log_std), 8, spec)
    obs = torch.randn(10, 8)
    DiagGaussian(net.actor(obs)).log_prob(torch.randn(10, 3)).sum().backward()
    net.critic.values(obs).square().sum().backward()
    silent = [n for n, p in net.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []


def test_policy_units_map_to_the_bounds_of_the_space() -> None:
    space = gym.spaces.Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))
    spec = ActionSpec.from_space(space)
    actions = np.array([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0], [9.0, -9.0]], np.float32)
    expected = [[-2.0, 0.0], [0.0, 5.0], [2.0, 10.0], [2.0, 0.0]]
    np.testing.assert_allclose(spec.to_env(actions), expected)


def test_unbounded_dimensions_pass_through_and_discrete_actions_start_where_they_start() -> None:
    unbounded = ActionSpec.from_space(gym.spaces.Box(-np.inf, np.inf, (1,)))
    np.testing.assert_allclose(unbounded.to_env(np.array([[7.5]], np.float32)), [[7.5]])
    shifted = ActionSpec.from_space(gym.spaces.Discrete(3, start=5))
    assert shifted.to_env(np.array([0, 2])).tolist() == [5, 7]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_env_actions_have_the_number_type_of_the_space_and_lie_in_it(dtype: Any) -> None:
    space = gym.spaces.Box(-0.1, 0.7, (2,), dtype)
    actions = np.array([[-9.0, 9.0], [-1.0, 1.0], [0.3, 0.0]], np.float32)
    env_actions = ActionSpec.from_space(space).to_env(actions)
    assert env_actions.dtype == dtype
    assert all(space.contains(action) for action in env_actions)


def test_other_number_types_are_refused() -> None:
    with pytest.raises(TypeError, match="use Discrete, MultiDiscrete, "):
        ActionSpec.from_space(gym.spaces.Box(-1.0, 1.0, (1,), np.float16))


@pytest.mark.parametrize("log_std", ["free", "state"])
def test_a_gaussian_starts_away_from_a_bound_that_has_no_opposite(log_std: str) -> None:
    low = np.array([0.0, 3.0, -5.0, -np.inf, -np.inf, -2.0], np.float32)
    high = np.array([np.inf, np.inf, np.inf, 0.0, np.inf, 8.0], np.float32)
    spec = ActionSpec.from_space(gym.spaces.Box(low, high))
    net = build_actor_critic(MLPConfig(log_std=log_std), 8, spec)
    mean = net.actor(torch.zeros(1, 8))[0, :6].detach().numpy()
    np.testing.assert_allclose(mean, [1.0, 4.0, 0.0, -1.0, 0.0, 0.0], atol=1e-6)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_mean_and_drops_the_asked_share(p: float) -> None:
    torch.manual_seed(0)
    dropped = dropout(torch.ones(1001, 401), p)
    assert abs(float((dropped == 0).float().mean()) - p) < 0.005
    assert abs(float(dropped.mean()) - 1.0) < 0.02
    assert dropped.unique().tolist() == pytest.approx([0.0, 1.0 / (1.0 - p)])


@pytest.mark.parametrize(("start", "wanted"), [(2.0, -1.0), (-5.0, 0.0)])
def test_a_log_std_on_its_bound_comes_back_inside(start: float, wanted: float) -> None:
    spec = ActionSpec.from_space(gym.spaces.Box(-1.0, 1.0, (2,)))
    head = build_actor_critic(MLPConfig(log_std_init=start), 3, spec).actor.head
    optimizer = torch.optim.Adam([head.log_std], 0.1)
    for target in [start * 2.0] * 5 + [wanted] * 100:
        optimizer.zero_grad()
        log_std = head(torch.zeros(1, 64))[0, 2:]
        assert log_std.detach().abs().max() <= 5.0
        assert log_std.detach().max() <= 2.0
        (log_std - target).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(head.log_std, torch.full((2,), wanted), rtol=0, atol=0.1)


def test_bounds_as_wide_as_floats_are_no_bounds() -> None:
    limit = float(np.finfo(np.float32).max)
    spec = ActionSpec.from_space(gym.spaces.Box(-limit, limit, (1,)))
    np.testing.assert_allclose(spec.to_env(np.array([[0.5]], np.float32)), [[0.5]])


@pytest.mark.parametrize("reads_actions", [True, False])
@pytest.mark.parametrize("kind", ["discrete", "box"])
def test_a_stack_is_what_was_seen_and_done_with_zeros_before_the_first_step(
    kind: str, reads_actions: bool
) -> None:
    space = gym.spaces.Discrete(3) if kind == "discrete" else gym.spaces.Box(-1.0, 1.0, (2,))
    spec = ActionSpec.from_space(space)
    actor = StackActor(
        2,
        spec,
        context_length=3,
        reads_actions=reads_actions,
        hidden_sizes=(4,),
        activation="tanh",
        activate_last=True,
        log_std="free",
        log_std_init=0.0,
    )
    running = RunningHistory(2, 3, spec)
    obs = np.arange(1.0, 17.0, dtype=np.float32).reshape(4, 2, 2)  # of 4 steps in 2 envs
    done = np.array([[1, 2], [2, 0], [1, 1]])
    if kind == "box":
        done = np.stack([done + 0.5, -done], axis=-1).astype(np.float32)
    for step in range(3):
        running.observed(obs[step])
        running.acted(done[step])
        if step == 0:
            running.forget(np.array([False, True]))  # the second env begins again
    inputs = actor.encode(running.observed(obs[3])).numpy()
    assert inputs.shape == (2, actor.num_inputs)
    np.testing.assert_array_equal(inputs[:, :6], obs[1:].transpose(1, 0, 2).reshape(2, 6))
    if reads_actions:
        one_hot = np.eye(3)[done[1:]] if kind == "discrete" else done[1:]
        np.testing.assert_array_equal(inputs[:, 6:], one_hot.transpose(1, 0, 2).reshape(2, -1))
    else:
        assert inputs.shape[1] == 6
    running.forget(np.array([True, False]))
    first = actor.encode(running.observed(obs[3])).numpy()
    np.testing.assert_array_equal(first[0, :4], 0.0)
    np.testing.assert_array_equal(first[0, 4:6], obs[3, 0])
    np.testing.assert_array_equal(first[0, 6:], 0.0)
    np.testing.assert_array_equal(first[1], inputs[1])
