"""One vector, the same numbers as tensor by tensor."""

from __future__ import annotations

import copy

import torch
from torch import nn

from rl_service.algorithms.optimizer import FlatOptimizer


def test_steps_equal_those_of_adam_with_gradient_clipping() -> None:
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
    theirs = copy.deepcopy(ours)
    flat = FlatOptimizer(ours, lambda p: torch.optim.Adam(p, 1e-2, eps=1e-5, fused=True))
    adam = torch.optim.Adam(theirs.parameters(), 1e-2, eps=1e-5)
    for _ in range(20):
        x = torch.randn(16, 5)
        norm = flat.step((ours(x) * 10).square().mean(), 0.5)
        adam.zero_grad()
        (theirs(x) * 10).square().mean().backward()
        expected = nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        adam.step()
        torch.testing.assert_close(norm, expected)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_frozen_parameters_stay_as_they_are() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    net[0].requires_grad_(False)
    before = net[0].weight.clone()
    flat = FlatOptimizer(net, lambda p: torch.optim.SGD(p, 0.1))
    assert flat.vector.numel() == 4
    flat.step(net(torch.ones(2, 3)).sum(), None)
    assert torch.equal(net[0].weight, before)


def test_loading_weights_and_moments_goes_on_as_if_never_stopped() -> None:
    torch.manual_seed(0)
    data = torch.randn(10, 8, 3)

    def fresh() -> tuple[nn.Module, FlatOptimizer]:
        net = nn.Linear(3, 1)
        return net, FlatOptimizer(net, lambda p: torch.optim.Adam(p, 0.1, fused=True))

    net, optimizer = fresh()
    for x in data[:5]:
        optimizer.step(net(x).square().mean(), 1.0)
    weights, moments = copy.deepcopy(net.state_dict()), copy.deepcopy(optimizer.state_dict())
    for x in data[5:]:
        optimizer.step(net(x).square().mean(), 1.0)
    other, resumed = fresh()
    other.load_state_dict(weights)
    resumed.load_state_dict(moments)
    for x in data[5:]:
        resumed.step(other(x).square().mean(), 1.0)
    assert torch.equal(net.weight, other.weight)
