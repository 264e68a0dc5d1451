"""Several learners take the step that one takes, whatever part of a minibatch each of them has."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from custom_models.configs import GPT2CriticConfig, MLPConfig
from custom_models.distributions import distribution
from custom_models.heads import LOG_STD_MAX, LOG_STD_MIN, FeedForwardActor
from custom_models.model_config import ModelConfig
from custom_models.spaces import ActionSpec
from rl_service.algorithms.batch import ActorRows
from rl_service.algorithms.compiled import CompiledSteps, pointer
from rl_service.algorithms.minibatches import own_part, own_parts
from rl_service.algorithms.optimizer import FlatParameters, GradientStep, MinibatchStep
from rl_service.algorithms.peers import ALONE, Peers
from rl_service.algorithms.ppo import PPOPolicy
from rl_service.algorithms.trpo import fisher_product
from rl_service.common.errors import LearnerLostError
from tests.support.learners import NotCompiledPolicy
from tests.support.peers import together
from tests.support.policies import (
    OBS_SIZE,
    SPACES,
    actor_rows,
    chunk_rows,
    critic_chunks,
    policy_of,
    trunk_chunks,
)

NUM_ROWS = 37
GPT2 = GPT2CriticConfig(actor_net="gpt2", actor_context_length=6, context_length=6)
ALL_TERMS = {"entropy_coeff": 0.02, "kl_coeff": 0.3, "vf_clip_param": 0.2, "grad_clip": 0.3}
Peered = Mapping[str, Peers]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("num_rows", [0, 1, 2, 7, 9])
def test_parts_cover_all_rows_once_in_their_order(num_rows: int) -> None:
    rows = torch.arange(num_rows)
    parts = [Peers(rank=rank, size=3).part(rows) for rank in range(3)]
    assert torch.equal(torch.cat(parts), rows)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert torch.equal(ALONE.part(rows), rows)


def test_sums_are_the_same_on_all_and_the_first_one_decides() -> None:
    given = torch.randn(3, 1000)

    def work(peers: Peered) -> tuple[Tensor, float]:
        actor = peers["actor"]
        told = actor.from_first(0.1 + actor.rank)
        return actor.sum(given[actor.rank].clone()), told

    answers = together(3, work)
    for total, told in answers:
        assert torch.equal(total, answers[0][0])
        assert told == 0.1
    torch.testing.assert_close(answers[0][0], given.sum(0))
    assert ALONE.from_first(0.3) == 0.3


def test_the_sums_of_one_net_do_not_wait_for_those_of_the_other() -> None:
    def work(peers: Peered) -> float:
        names = ["actor", "critic"] if peers["actor"].is_first else ["critic", "actor"]
        sums: dict[str, float] = {}

        def add(name: str) -> None:
            for _ in range(50):
                sums[name] = float(peers[name].sum(torch.ones(10)).sum())

        threads = [threading.Thread(target=add, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(sums.values())

    assert together(2, work) == [40.0, 40.0]


def test_whoever_waits_for_a_lost_learner_is_freed() -> None:
    waits = threading.Event()

    def work(peers: Peered) -> str:
        if not peers["critic"].is_first:
            waits.wait()
            return ""
        threading.Timer(0.2, peers["critic"].give_up).start()
        try:
            peers["critic"].sum(torch.ones(10))
        except LearnerLostError as error:
            return str(error)
        finally:
            waits.set()
        return "never"

    assert together(2, work) == ["a learner is lost", ""]


def test_a_connection_that_breaks_is_one_line() -> None:
    def work(peers: Peered) -> str:
        if not peers["actor"].is_first:
            return ""  # its group is gone with it
        with pytest.raises(LearnerLostError) as caught:
            for _ in range(10):
                peers["actor"].sum(torch.ones(10))
        return str(caught.value)

    [message, _] = together(2, work)
    assert message.startswith("the connection between the learners broke (")
    assert message.endswith("continue from the last checkpoint with --resume")
    assert "\n" not in message


def test_weights_count_steps_and_a_learner_without_rows_weighs_nothing() -> None:
    mask = torch.tensor([[True, True], [True, False], [True, False], [True, True], [True, False]])
    chunks = critic_chunks(5)._replace(loss_mask=mask)
    whole = [own_part(chunks, Peers(rank=rank, size=2)) for rank in range(2)]
    assert [len(part.loss_mask) for part, _ in whole] == [3, 2]
    assert [float(weight) for _, weight in whole] == pytest.approx([4 / 7, 3 / 7])
    pieces = [
        list(own_parts(chunks, torch.arange(5), 5, Peers(rank=rank, size=2))) for rank in range(2)
    ]
    assert [[float(weight) for _, weight in each] for each in pieces] == [[1.0] * 5, [0.0] * 5]
    assert own_part(chunks, ALONE) == (chunks, 1.0)


def copies_of(policy: PPOPolicy, size: int) -> list[PPOPolicy]:
    settings = policy.settings
    arguments = settings.algorithm.model_dump(exclude={"name"})
    copies = [
        policy_of(policy.action_space, settings.model, type(policy), **arguments)
        for _ in range(size)
    ]
    for each in copies:
        each.net.load_state_dict(policy.net.state_dict())
    return copies


def check_that_they_equal_one(
    policy: PPOPolicy, name: str, batch: Any, size: int, sizes: list[int]
) -> None:
    """Passes of several learners against those of one, in so many minibatches each."""
    copies = copies_of(policy, size)
    orders = [torch.randperm(len(batch.steps_per_row)) for _ in sizes]

    def run(learner: PPOPolicy) -> list[GradientStep]:
        return [
            learner.steps[name].run(batch, order, num_minibatches)
            for order, num_minibatches in zip(orders, sizes, strict=True)
        ]

    def work(peers: Peered) -> list[GradientStep]:
        copies[peers[name].rank].join(peers)
        return run(copies[peers[name].rank])

    expected, actual = run(policy), together(size, work)
    kind = MinibatchStep if isinstance(policy, NotCompiledPolicy) else CompiledSteps
    for each, passes in zip(copies, actual, strict=True):
        assert isinstance(each.steps[name], kind)
        torch.testing.assert_close(passes, expected, rtol=1e-5, atol=1e-6)
        vectors = [one.optimizers[name].vector.detach() for one in (each, policy)]
        torch.testing.assert_close(*vectors, rtol=0, atol=1e-5)
        assert torch.equal(vectors[0], copies[0].optimizers[name].vector)


def batch_of(policy: PPOPolicy, name: str) -> Any:
    """Rows or chunks, as the net of that name reads them."""
    if isinstance(policy.settings.model, MLPConfig):
        return actor_rows(policy, NUM_ROWS) if name == "actor" else critic_chunks(NUM_ROWS)
    chunks = trunk_chunks(GPT2.context_length)
    return chunk_rows(policy, chunks) if name == "actor" else chunks


@pytest.mark.parametrize("kind", [PPOPolicy, NotCompiledPolicy])
@pytest.mark.parametrize("name", ["actor", "critic"])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("model", [MLPConfig(), GPT2], ids=["mlp", "gpt2"])
@pytest.mark.parametrize("size", [2, 3])
def test_learners_take_the_steps_of_one(
    kind: type[PPOPolicy], name: str, space: str, model: ModelConfig, size: int
) -> None:
    policy = policy_of(SPACES[space], model, kind, **ALL_TERMS)
    # One minibatch, uneven ones, and some with fewer rows than learners.
    check_that_they_equal_one(policy, name, batch_of(policy, name), size, [1, 5, 15])


@pytest.mark.parametrize("kind", [PPOPolicy, NotCompiledPolicy])
def test_a_part_without_counted_steps_changes_nothing(kind: type[PPOPolicy]) -> None:
    policy = policy_of(SPACES["box"], MLPConfig(), kind)
    chunks = critic_chunks(8)
    mask = torch.zeros_like(chunks.loss_mask)
    mask[0] = True
    check_that_they_equal_one(policy, "critic", chunks._replace(loss_mask=mask), 2, [1, 2])


@pytest.mark.parametrize("kind", [PPOPolicy, NotCompiledPolicy])
@pytest.mark.parametrize("bound", [LOG_STD_MIN, LOG_STD_MAX])
@pytest.mark.parametrize("pull", [-1.0, 1.0])
def test_learners_that_disagree_at_a_bound_decide_together(
    kind: type[PPOPolicy], bound: float, pull: float
) -> None:
    """One learner's rows push the log deviation up, those of the other down."""
    policy = policy_of(SPACES["box"], MLPConfig(), kind)
    head: Any = policy.net.actor.head
    with torch.no_grad():
        head.log_std.fill_(bound)
    rows = actor_rows(policy, 2)
    with torch.no_grad():
        dist_inputs = policy.net.actor(rows.inputs)
    mean, log_std = dist_inputs.chunk(2, dim=1)
    actions = mean + 0.5 * log_std.exp()  # near the mean: the deviation is too large for them
    logp = distribution(policy.action_spec, dist_inputs).log_prob(actions)
    advantages = torch.tensor([2.0 * pull, -1.0 * pull])
    batch = ActorRows(rows.inputs, actions, logp, dist_inputs, advantages)
    check_that_they_equal_one(policy, "actor", batch, 2, [1])
    moved = (head.log_std - bound).abs() > 1e-6
    assert moved.all() == ((bound == LOG_STD_MAX) == (pull > 0))


@pytest.mark.parametrize("name", ["actor", "critic"])
@pytest.mark.parametrize("model", [MLPConfig(), GPT2], ids=["mlp", "gpt2"])
def test_gradient_and_step_apart_are_the_pass(name: str, model: ModelConfig) -> None:
    policy = policy_of(SPACES["box"], model, **ALL_TERMS)
    [other] = copies_of(policy, 1)
    batch = batch_of(policy, name)
    num_rows = len(batch.steps_per_row)
    order = torch.randperm(num_rows)
    expected = policy.steps[name].run(batch, order, 1)
    steps = other.steps[name]
    assert isinstance(steps, CompiledSteps)
    columns, inputs, _kept = steps._read(batch)
    num_steps = 1 if batch.loss_mask is None else batch.loss_mask.shape[1]
    plan, inputs, _more_kept = steps.plan_and_inputs(inputs, num_steps)
    steps._memory = torch.zeros(steps._room(ctypes.byref(plan)))
    given: list[Any] = [ctypes.byref(each) for each in (steps._net(), columns, plan)]
    given += [inputs, pointer(steps._memory)]

    def gradient(begin: int, end: int) -> tuple[float, Tensor]:
        places = map(ctypes.c_int64, (num_rows, begin, end))
        loss = steps._gradient(*given, pointer(order), *places)
        return loss, other.optimizers[name].grad.clone()

    parts = [gradient(0, 11), gradient(11, 11), gradient(11, num_rows)]
    assert parts[1][0] == 0.0 and not parts[1][1].any()
    loss, whole = gradient(0, num_rows)
    assert sum(part[0] for part in parts) == pytest.approx(loss, rel=1e-6)
    torch.testing.assert_close(parts[0][1] + parts[2][1], whole, rtol=1e-5, atol=1e-6)
    norm = steps._library.take_step(*given[:2])
    assert (loss, norm) == pytest.approx((float(expected.loss), float(expected.grad_norm)))
    assert torch.equal(*(each.optimizers[name].vector for each in (policy, other)))


def test_products_with_the_fisher_matrix_add_up() -> None:
    spec = ActionSpec.from_space(SPACES["box"])
    shape: dict[str, Any] = {"activation": "tanh", "activate_last": True, "log_std": "free"}
    actor = FeedForwardActor(OBS_SIZE, spec, hidden_sizes=(8,), log_std_init=0.0, **shape)
    flat = FlatParameters(actor)
    obs, read = torch.randn(NUM_ROWS, OBS_SIZE), partial(distribution, spec)
    unread = torch.zeros(NUM_ROWS)
    rows = ActorRows(obs, unread, unread, unread, unread)
    vector = torch.randn_like(flat.vector)
    expected = fisher_product(flat, obs, read, 0.0)(vector)
    parts = [own_part(rows, Peers(rank=rank, size=2)) for rank in range(2)]
    products = [fisher_product(flat, part.inputs, read, 0.0, None, w) for part, w in parts]
    torch.testing.assert_close(sum(product(vector) for product in products), expected)
