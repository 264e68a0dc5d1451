"""A step is the same arithmetic, recorded or not; recording it is no learning."""

from __future__ import annotations

import copy
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from rl_service.algorithms.optimizer import MAX_GRAPHS, FlatOptimizer, MinibatchStep

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Inner(NamedTuple):
    x: Tensor


class Batch(NamedTuple):
    inner: Inner
    y: Tensor


class Learner:
    """A small net with everything that a step needs."""

    def __init__(self, device: str, optimizer: str = "adam") -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
        self.scale = torch.tensor(2.0, device=device)
        build = {
            "adam": lambda p: torch.optim.Adam(p, 0.01, eps=1e-5, fused=True),
            "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, eps=1e-5),
        }
        self.optimizer = FlatOptimizer(self.net, build[optimizer])
        self.step = MinibatchStep(self.loss, self.optimizer, grad_clip=0.5)

    def loss(self, batch: Batch) -> Tensor:
        return self.scale * (self.net(batch.inner.x).squeeze(-1) - batch.y).square().mean()

    def state(self) -> Tensor:
        return self.optimizer.vector.detach().cpu().clone()


def batches(device: str, sizes: list[int]) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    return [
        Batch(
            Inner(torch.randn(n, 3, generator=generator).to(device)),
            torch.randn(n, generator=generator).to(device),
        )
        for n in sizes
    ]


def test_a_step_returns_loss_and_norm_and_moves_the_net() -> None:
    learner = Learner("cpu")
    [batch] = batches("cpu", [16])
    before = learner.state()
    expected = learner.loss(batch).detach()
    gradient = torch.autograd.grad(learner.loss(batch), list(learner.net.parameters()))
    stepped = learner.step(batch)
    torch.testing.assert_close(stepped.loss, expected)
    norm = torch.cat([g.reshape(-1) for g in gradient]).norm()
    torch.testing.assert_close(stepped.grad_norm, norm)
    assert not stepped.loss.requires_grad
    assert not torch.equal(learner.state(), before)


@pytest.mark.parametrize("steps_before", [0, 3])
def test_preserved_steps_leave_no_trace(steps_before: int) -> None:
    ours, theirs = Learner("cpu"), Learner("cpu")
    data = batches("cpu", [8] * 10)
    for batch in data[:steps_before]:
        ours.step(batch), theirs.step(batch)
    with ours.optimizer.preserved():
        for batch in data[3:6]:
            ours.step(batch)
    for batch in data[6:]:
        ours.step(batch), theirs.step(batch)
    assert torch.equal(ours.state(), theirs.state())


@on_gpu
def test_recorded_steps_equal_those_of_a_cpu_with_changing_rates_and_shapes() -> None:
    here, there = Learner("cpu"), Learner("cuda")
    sizes = [16, 15, 16, 16, 15, 16] * 5
    pairs = zip(batches("cpu", sizes), batches("cuda", sizes), strict=True)
    for i, (ours, theirs) in enumerate(pairs):
        for learner in (here, there):
            learner.optimizer.set_lr(0.01 / (1 + i))
            learner.scale.fill_(1.0 + i % 3)
        stepped, recorded = here.step(ours), there.step(theirs)
        torch.testing.assert_close(recorded.loss.cpu(), stepped.loss, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            recorded.grad_norm.cpu(), stepped.grad_norm, rtol=1e-4, atol=1e-5
        )
    torch.testing.assert_close(there.state(), here.state(), rtol=1e-4, atol=1e-5)


@on_gpu
def test_more_shapes_than_are_recorded_are_stepped_all_the_same() -> None:
    here, there = Learner("cpu"), Learner("cuda")
    sizes = list(range(1, MAX_GRAPHS + 5))
    for ours, theirs in zip(batches("cpu", sizes), batches("cuda", sizes), strict=True):
        here.step(ours), there.step(theirs)
    torch.testing.assert_close(there.state(), here.state(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("saved_on", "resumed_on"),
    [
        ("cpu", "cpu"),
        pytest.param("cuda", "cuda", marks=on_gpu),
        pytest.param("cuda", "cpu", marks=on_gpu),
        pytest.param("cpu", "cuda", marks=on_gpu),
    ],
)
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_state_goes_on_on_either_kind_of_device(
    saved_on: str, resumed_on: str, optimizer: str
) -> None:
    first, unbroken = Learner(saved_on, optimizer), Learner("cpu", optimizer)
    for batch, same in zip(batches(saved_on, [8] * 5), batches("cpu", [8] * 5), strict=True):
        first.step(batch), unbroken.step(same)
    second = Learner(resumed_on, optimizer)
    second.net.load_state_dict(first.net.state_dict())
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    for batch, same in zip(batches(resumed_on, [8] * 5), batches("cpu", [8] * 5), strict=True):
        second.optimizer.set_lr(0.02), unbroken.optimizer.set_lr(0.02)
        second.step(batch), unbroken.step(same)
    torch.testing.assert_close(second.state(), unbroken.state(), rtol=1e-4, atol=1e-5)
