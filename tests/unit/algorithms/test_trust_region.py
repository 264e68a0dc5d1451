"""Conjugate gradient, Fisher products and the line search against answers known otherwise."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from custom_models.distributions import distribution
from custom_models.heads import LOG_STD_MAX, FeedForwardActor
from custom_models.spaces import ActionSpec
from rl_service.algorithms.optimizer import FlatParameters
from rl_service.algorithms.trpo import (
    Searched,
    Tried,
    conjugate_gradient,
    fisher_product,
    line_search,
    natural_step,
)

CATEGORICAL = ActionSpec("discrete", 3)
BOX = ActionSpec("box", 2, shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0))


@pytest.mark.parametrize("size", [1, 5, 40])
def test_conjugate_gradient_solves_positive_definite_systems(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    for _ in range(5):
        root = torch.randn(size, size, generator=generator, dtype=torch.float64)
        matrix = root @ root.T + 0.5 * torch.eye(size, dtype=torch.float64)
        b = torch.randn(size, generator=generator, dtype=torch.float64)
        solution = conjugate_gradient(lambda v, m=matrix: m @ v, b, 3 * size)  # type: ignore[misc]
        torch.testing.assert_close(solution.x, torch.linalg.solve(matrix, b), rtol=1e-6, atol=1e-6)
        assert solution.residual < 1e-6


def test_too_few_iterations_leave_a_residual_that_is_told() -> None:
    matrix = torch.diag(torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64))
    b = torch.ones(3, dtype=torch.float64)
    solution = conjugate_gradient(lambda v: matrix @ v, b, 1)
    left = torch.linalg.vector_norm(matrix @ solution.x - b) / torch.linalg.vector_norm(b)
    assert solution.residual == pytest.approx(float(left))
    assert solution.residual > 0.1


def test_a_singular_matrix_ends_with_what_was_found_so_far() -> None:
    matrix = torch.diag(torch.tensor([2.0, 0.0]))
    solution = conjugate_gradient(lambda v: matrix @ v, torch.tensor([2.0, 0.0]), 10)
    torch.testing.assert_close(solution.x, torch.tensor([1.0, 0.0]))
    stuck = conjugate_gradient(lambda v: torch.zeros_like(v), torch.ones(2), 10)
    assert torch.equal(stuck.x, torch.zeros(2))
    assert stuck.residual == 1.0


def test_nothing_to_solve_is_solved_at_once() -> None:
    solution = conjugate_gradient(lambda v: v, torch.zeros(4), 10)
    assert torch.equal(solution.x, torch.zeros(4))
    assert solution.residual == 0.0


def small_actor(spec: ActionSpec, log_std: str) -> FeedForwardActor:
    torch.manual_seed(1)
    actor = FeedForwardActor(
        4,
        spec,
        hidden_sizes=(5,),
        activation="tanh",
        activate_last=True,
        log_std=log_std,
        log_std_init=-0.3,
    ).double()
    for parameter in actor.parameters():  # away from the small weights of the start
        nn.init.normal_(parameter, std=0.2)
    return actor


@pytest.mark.parametrize(
    ("spec", "log_std"),
    [
        (CATEGORICAL, "free"),
        (BOX, "free"),
        (BOX, "state"),
    ],
    ids=["categorical", "gaussian", "gaussian, state-dependent deviation"],
)
def test_the_fisher_product_equals_the_full_hessian_of_the_kl(
    spec: ActionSpec, log_std: str
) -> None:
    actor = small_actor(spec, log_std)
    obs = torch.randn(16, 4, dtype=torch.float64)
    names = [name for name, _ in actor.named_parameters()]
    sizes = [p.numel() for p in actor.parameters()]
    start = torch.cat([p.detach().reshape(-1) for p in actor.parameters()])
    old = distribution(spec, actor(obs).detach())

    def mean_kl(vector: Tensor) -> Tensor:
        parts = vector.split(sizes)
        shaped = {
            name: part.view_as(p)
            for name, part, p in zip(names, parts, actor.parameters(), strict=True)
        }
        new = distribution(spec, torch.func.functional_call(actor, shaped, (obs,)))
        kl: Tensor = old.kl(new)  # type: ignore[arg-type]
        return kl.mean()

    hessian = torch.autograd.functional.hessian(mean_kl, start)
    product = fisher_product(FlatParameters(actor), obs, partial(distribution, spec), 0.1)
    for _ in range(5):
        vector = torch.randn_like(start)
        torch.testing.assert_close(
            product(vector), hessian @ vector + 0.1 * vector, rtol=1e-5, atol=1e-5
        )


def test_the_fisher_product_counts_only_the_steps_of_a_mask() -> None:
    flat = FlatParameters(small_actor(BOX, "state"))
    inputs = torch.randn(3, 7, 4, dtype=torch.float64)
    mask = torch.rand(3, 7) < 0.6
    read = partial(distribution, BOX)
    expected = fisher_product(flat, inputs[mask], read, 0.1)
    vector = torch.randn_like(flat.vector.detach())
    masked = fisher_product(flat, inputs, read, 0.1, mask)
    torch.testing.assert_close(masked(vector), expected(vector))


@pytest.mark.parametrize("log_std", ["free", "state"])
def test_the_fisher_product_is_linear_and_symmetric_where_a_deviation_is_at_its_bound(
    log_std: str,
) -> None:
    actor = small_actor(BOX, log_std)
    head: Any = actor.head
    with torch.no_grad():
        (head.log_std if log_std == "free" else head.log_std_layer.bias).fill_(LOG_STD_MAX + 3.0)
    obs = torch.randn(16, 4, dtype=torch.float64)
    flat = FlatParameters(actor)
    product = fisher_product(flat, obs, partial(distribution, BOX), 0.0)
    a, b = (torch.randn_like(flat.vector.detach()) for _ in range(2))
    torch.testing.assert_close(product(2.0 * a - 3.0 * b), 2.0 * product(a) - 3.0 * product(b))
    torch.testing.assert_close(a @ product(b), b @ product(a))


class Point(nn.Module):
    """Parameters θ with a quadratic KL ½ (θ - θ₀)ᵀ F (θ - θ₀) and a linear surrogate gᵀ θ."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.theta = nn.Parameter(torch.randn(6, generator=generator, dtype=torch.float64))
        self.start = self.theta.detach().clone()
        root = torch.randn(6, 6, generator=generator, dtype=torch.float64)
        self.fisher = root @ root.T + 0.1 * torch.eye(6, dtype=torch.float64)
        self.slope = torch.randn(6, generator=generator, dtype=torch.float64)

    def kl(self) -> Tensor:
        moved = self.theta - self.start
        return 0.5 * moved @ self.fisher @ moved

    def fisher_product(self, vector: Tensor) -> Tensor:
        return self.fisher @ vector

    def surrogate(self) -> Tensor:
        return self.slope @ self.theta

    @torch.no_grad()
    def evaluate(self) -> Tried:
        return Tried(float(self.surrogate()), float(self.kl()))


def search(point: Point, flat: FlatParameters, step: Tensor, max_kl: float = 0.02) -> Searched:
    return line_search(
        flat,
        step,
        point.evaluate,
        surrogate=point.evaluate().surrogate,
        max_kl=max_kl,
        factor=0.5,
        num_steps=4,
    )


def test_on_a_quadratic_problem_the_step_is_the_analytic_one() -> None:
    point, delta = Point(), 0.02
    flat = FlatParameters(point)
    gradient = flat.gradient(point.surrogate())
    step, residual = natural_step(gradient, point.fisher_product, max_kl=delta, iterations=20)
    inverse = torch.linalg.solve(point.fisher, point.slope)
    expected = (2 * delta / (point.slope @ inverse)).sqrt() * inverse
    torch.testing.assert_close(step, expected, rtol=1e-6, atol=1e-8)
    assert residual < 1e-8
    found = search(point, flat, step, max_kl=delta * (1 + 1e-9))  # the full step has KL δ
    assert found.accepted and found.num_steps == 1
    assert found.kl == pytest.approx(delta)
    torch.testing.assert_close(point.theta.detach(), point.start + expected)


def test_a_step_that_is_too_long_is_shortened_until_it_keeps_the_limit() -> None:
    point = Point()
    flat = FlatParameters(point)
    step, _ = natural_step(
        flat.gradient(point.surrogate()),
        point.fisher_product,
        max_kl=0.02 * 15.9,  # KL grows with the square: a quarter of the length is the first fit
        iterations=20,
    )
    found = search(point, flat, step)
    assert found.accepted and found.num_steps == 3
    torch.testing.assert_close(point.theta.detach(), point.start + step / 4)


@pytest.mark.parametrize("bad", ["down", "far", "nan"])
def test_a_bad_step_is_refused_and_leaves_the_parameters_bit_for_bit(bad: str) -> None:
    point = Point()
    flat = FlatParameters(point)
    before = point.theta.detach().clone()
    step = {
        "down": -1e-3 * point.slope,  # within the limit, but the surrogate falls
        "far": 1e3 * point.slope,  # the surrogate rises, but far outside the limit
        "nan": torch.full_like(before, float("nan")),
    }[bad]
    found = search(point, flat, step)
    assert not found.accepted and found.num_steps == 4
    assert found.kl == 0.0
    assert torch.equal(point.theta.detach(), before)


def test_without_a_gradient_there_is_no_step() -> None:
    step, residual = natural_step(torch.zeros(3), lambda v: v, max_kl=0.01, iterations=5)
    assert torch.equal(step, torch.zeros(3))
    assert residual == 0.0


def test_frozen_parameters_take_no_part() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    net[0].requires_grad_(False)
    flat = FlatParameters(net)
    assert flat.gradient(net(torch.ones(1, 3)).sum()).shape == (10,)
