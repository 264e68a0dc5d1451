"""Machine code takes the steps that torch takes."""

from __future__ import annotations

import copy
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from custom_models.configs import GPT2CriticConfig, MLPConfig
from custom_models.distributions import MASKED, distribution
from custom_models.heads import LOG_STD_MAX, LOG_STD_MIN
from custom_models.interfaces import Chunks
from custom_models.model_config import ModelConfig
from rl_service.algorithms import machine_code
from rl_service.algorithms.batch import ActorRows, CriticChunks, LearnerBatch
from rl_service.algorithms.compiled import CompiledSteps
from rl_service.algorithms.optimizer import FlatOptimizer, MinibatchStep
from rl_service.algorithms.ppo import PPOPolicy
from tests.support.policies import (
    SPACES,
    actor_rows,
    chunk_rows,
    critic_chunks,
    policy_of,
    trunk_chunks,
)

NUM_ROWS = 301
NETS = {
    "default": MLPConfig(),
    "relu": MLPConfig(hidden_sizes=(33, 17), critic_hidden_sizes=(40,), activation="relu"),
    "linear last": MLPConfig(hidden_sizes=(5, 6), critic_hidden_sizes=(), activate_last=False),
    "stack": MLPConfig(actor_net="stack", actor_context_length=3),
}
LOSSES = {
    "plain": {},
    "all terms": {"entropy_coeff": 0.02, "kl_coeff": 0.3, "vf_clip_param": 0.2},
}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


TRUNKS: dict[str, dict[str, Any]] = {
    "default": {},
    "no time": {"time": "none"},
    "three layers": {"n_layer": 3, "context_length": 12, "n_head": 2},
    "narrow, two layers": {"n_layer": 2, "context_length": 5, "n_embd": 32, "n_head": 4},
    "approximate": {"n_layer": 2, "context_length": 6, "attention": "approximate"},
    "long": {"context_length": 40, "n_embd": 16, "n_head": 2},
}


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("loss", LOSSES)
def test_an_actor_that_reads_chunks_learns_as_torch_teaches_it(space: str, loss: str) -> None:
    model = GPT2CriticConfig(actor_net="gpt2", actor_context_length=6)
    policy = policy_of(SPACES[space], model, **LOSSES[loss], grad_clip=1e9)
    with torch.no_grad():
        for weight in policy.net.actor.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    ours, theirs, plain = both(policy, "actor")
    chunks = trunk_chunks(6)
    rows = chunk_rows(policy, chunks)
    for num_minibatches in (1, 4):
        order = torch.randperm(len(rows.actions))
        actual = ours.run(rows, order, num_minibatches)
        expected = theirs.run(rows, order, num_minibatches)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
        gradients = [each.optimizers["actor"].grad for each in (policy, plain)]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
        assert gradients[1].abs().max() > 1e-2


@pytest.mark.parametrize("trunk", TRUNKS)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_gpt2_critic_learns_as_torch_teaches_it(trunk: str, loss: str) -> None:
    model = GPT2CriticConfig(**TRUNKS[trunk])
    policy = policy_of(SPACES["discrete"], model, **LOSSES[loss])
    with torch.no_grad():  # far from its start, where attention is even and norms do nothing
        for weight in policy.net.critic.parameters():  # type: ignore[union-attr]
            weight.add_(0.1 * torch.randn_like(weight))
    ours, theirs, plain = both(policy, "critic")
    batch = trunk_chunks(model.context_length)
    order = torch.randperm(len(batch.targets))
    actual, expected = ours.run(batch, order, 1), theirs.run(batch, order, 1)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    gradients = [each.optimizers["critic"].grad for each in (policy, plain)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)
    for name, parameter in plain.net.critic.named_parameters():  # type: ignore[union-attr]
        is_moved = parameter.grad.abs().max() > 1e-5  # type: ignore[union-attr]
        assert is_moved or name.endswith("c_attn.bias"), name
    for _ in range(3):
        order = torch.randperm(len(batch.targets))
        actual, expected = ours.run(batch, order, 4), theirs.run(batch, order, 4)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
    vectors = [each.optimizers["critic"].vector.detach() for each in (policy, plain)]
    torch.testing.assert_close(*vectors, rtol=0, atol=2e-5)


def both(policy: PPOPolicy, name: str) -> tuple[CompiledSteps, MinibatchStep, PPOPolicy]:
    """Compiled steps, and torch's on another policy with the same weights."""
    plain = policy_of(policy.action_space, policy.settings.model, **policy_arguments(policy))
    plain.net.load_state_dict(policy.net.state_dict())
    loss = plain.actor_loss if name == "actor" else plain.critic_loss
    optimizer = plain.optimizers[name]
    theirs = MinibatchStep(loss, optimizer, plain.algorithm.grad_clip)
    ours = policy.steps[name]
    assert isinstance(ours, CompiledSteps)
    return ours, theirs, plain


def policy_arguments(policy: PPOPolicy) -> dict[str, Any]:
    return policy.settings.algorithm.model_dump(exclude={"name"})


@pytest.mark.parametrize("name", ["actor", "critic"])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_are_those_of_autograd(name: str, space: str, net: str, loss: str) -> None:
    algorithm: dict[str, Any] = {**LOSSES[loss], "grad_clip": 1e9}
    policy = policy_of(SPACES[space], NETS[net], **algorithm)
    ours, theirs, plain = both(policy, name)
    batch: Any = actor_rows(policy, NUM_ROWS) if name == "actor" else critic_chunks(NUM_ROWS)
    order = torch.randperm(NUM_ROWS)
    actual, expected = ours.run(batch, order, 1), theirs.run(batch, order, 1)
    torch.testing.assert_close(actual.loss, expected.loss, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(actual.grad_norm, expected.grad_norm, rtol=1e-5, atol=1e-6)
    gradients = [each.optimizers[name].grad for each in (policy, plain)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)
    assert gradients[1].abs().max() > 1e-3


@pytest.mark.parametrize("space", ["discrete", "multi_discrete"])
@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_of_masked_logits_are_those_of_autograd(loss: str, space: str) -> None:
    policy = policy_of(SPACES[space], MLPConfig(), **LOSSES[loss], grad_clip=1e9)
    ours, theirs, plain = both(policy, "actor")
    rows = actor_rows(policy, NUM_ROWS)
    forbidden = torch.rand_like(rows.dist_inputs) < 0.4
    spec = policy.action_spec
    taken = rows.actions.reshape(NUM_ROWS, -1) + torch.tensor(spec.first_logits)
    forbidden.scatter_(1, taken, False)  # some rows leave no choice
    dist_inputs = rows.dist_inputs.masked_fill(forbidden, MASKED)
    logp = distribution(spec, dist_inputs).log_prob(rows.actions)
    masked = rows._replace(dist_inputs=dist_inputs, action_logp=logp)
    order = torch.randperm(NUM_ROWS)
    actual, expected = ours.run(masked, order, 1), theirs.run(masked, order, 1)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    gradients = [each.optimizers["actor"].grad for each in (policy, plain)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["actor", "critic"])
@pytest.mark.parametrize("space", SPACES)
def test_passes_are_those_of_torch_with_clipped_gradients(name: str, space: str) -> None:
    policy = policy_of(SPACES[space], NETS["default"], **LOSSES["all terms"], grad_clip=0.3)
    ours, theirs, plain = both(policy, name)
    batch: Any = actor_rows(policy, NUM_ROWS) if name == "actor" else critic_chunks(NUM_ROWS)
    before = policy.optimizers[name].vector.detach().clone()
    for lr in (1e-2, 1e-3):
        policy.optimizers[name].set_lr(lr), plain.optimizers[name].set_lr(lr)
        order = torch.randperm(NUM_ROWS)
        actual, expected = ours.run(batch, order, 7), theirs.run(batch, order, 7)
        assert actual.loss.shape == (7,)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    vectors = [each.optimizers[name].vector.detach() for each in (policy, plain)]
    torch.testing.assert_close(*vectors, rtol=0, atol=2e-5)
    assert (vectors[0] - before).abs().max() > 1e-2


@pytest.mark.parametrize("bound", [LOG_STD_MIN, LOG_STD_MAX])
def test_a_bounded_log_deviation_moves_only_back_inside(bound: float) -> None:
    policy = policy_of(SPACES["box"], NETS["default"], entropy_coeff=0.5)
    with torch.no_grad():
        policy.net.actor.head.log_std.fill_(bound)  # type: ignore[union-attr, operator]
    ours, theirs, plain = both(policy, "actor")
    rows = actor_rows(policy, NUM_ROWS)
    for advantage in (0.0, 30.0):  # what pushes it up, and what pushes it down
        batch = rows._replace(advantages=torch.full((NUM_ROWS,), advantage))
        order = torch.arange(NUM_ROWS)
        torch.testing.assert_close(
            ours.run(batch, order, 1), theirs.run(batch, order, 1), rtol=1e-4, atol=1e-5
        )
        gradients = [each.optimizers["actor"].grad for each in (policy, plain)]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("first", ["compiled", "torch"])
def test_a_run_goes_on_with_or_without_a_compiler(first: str) -> None:
    policy = policy_of(SPACES["discrete"], NETS["default"])
    ours, theirs, plain = both(policy, "critic")
    batch = critic_chunks(NUM_ROWS)
    sides = [(policy, ours), (plain, theirs)]
    (one, its_steps), (other, other_steps) = sides if first == "compiled" else sides[::-1]
    its_steps.run(batch, torch.randperm(NUM_ROWS), 4)
    other.set_learner_state(copy.deepcopy(one.get_learner_state()))
    order = torch.randperm(NUM_ROWS)
    its_steps.run(batch, order, 4), other_steps.run(batch, order, 4)
    vectors = [each.optimizers["critic"].vector.detach() for each in (one, other)]
    torch.testing.assert_close(*vectors, rtol=0, atol=1e-5)
    counts = [each.get_learner_state()["optimizers"]["critic"]["state"][0] for each in (one, other)]
    assert [float(each["step"]) for each in counts] == [8.0, 8.0]


def test_two_nets_may_learn_at_once() -> None:
    one, two = (policy_of(SPACES["box"], NETS["default"]) for _ in range(2))
    two.net.load_state_dict(one.net.state_dict())
    rows, chunks = actor_rows(one, NUM_ROWS), critic_chunks(NUM_ROWS)
    order = torch.randperm(NUM_ROWS)

    def work(policy: PPOPolicy) -> list[Callable[[], Any]]:
        return [
            lambda: [policy.steps["actor"].run(rows, order, 5) for _ in range(20)],
            lambda: [policy.steps["critic"].run(chunks, order, 5) for _ in range(20)],
        ]

    threads = [threading.Thread(target=each) for each in work(one)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in work(two):
        each()
    for name in ("actor", "critic"):
        assert torch.equal(one.optimizers[name].vector, two.optimizers[name].vector)


class OwnLoss(PPOPolicy):
    def actor_loss(self, rows: ActorRows) -> Tensor:
        return -rows.mean(rows.advantages)


class OwnOutputs(PPOPolicy):
    def critic_outputs(self, chunks: Chunks, num_values: int) -> Tensor:
        return 2.0 * super().critic_outputs(chunks, num_values)


class OwnSampling(PPOPolicy):
    def sampling_distribution(self, rows: ActorRows) -> Any:
        return distribution(self.action_spec, rows.dist_inputs + 1.0)


class OwnAdam(PPOPolicy):
    def build_adam(self, name: str, lr: float) -> FlatOptimizer:
        return FlatOptimizer(
            getattr(self.net, name), lambda p: torch.optim.AdamW(p, lr, weight_decay=1.0)
        )


class OwnLayer(PPOPolicy):
    def build_optimizers(self) -> dict[str, FlatOptimizer]:
        self.net.actor.body.insert(1, nn.GELU())  # type: ignore[operator, union-attr]
        self.net.critic.body.append(nn.Linear(64, 64))  # type: ignore[operator, union-attr]
        self.net.critic.body.append(nn.Sigmoid())  # type: ignore[operator, union-attr]
        return super().build_optimizers()


class Frozen(PPOPolicy):
    def build_optimizers(self) -> dict[str, FlatOptimizer]:
        for net in (self.net.actor, self.net.critic):
            net.body[0].requires_grad_(False)  # type: ignore[index, union-attr]
        return super().build_optimizers()


class OwnUpdate(PPOPolicy):
    def update_critic(self, batch: LearnerBatch) -> dict[str, float]:
        return super().update_critic(batch)


def test_updates_of_a_users_own_take_turns() -> None:
    policy = policy_of(SPACES["box"], MLPConfig(), OwnUpdate)
    assert all(isinstance(each, CompiledSteps) for each in policy.steps.values())
    assert not policy.learns_apart


@pytest.mark.parametrize("num_values", [1, 3])
def test_an_mlp_critic_ignores_the_context_of_chunks(num_values: int) -> None:
    """As the critic of a language model with a context does."""
    policy = policy_of(SPACES["discrete"], MLPConfig(), grad_clip=1e9)
    ours, theirs, plain = both(policy, "critic")
    chunks = trunk_chunks(4)
    batch = chunks._replace(
        targets=chunks.targets[:, -num_values:],
        outputs=chunks.outputs[:, -num_values:],
        loss_mask=chunks.loss_mask[:, -num_values:],
    )
    order = torch.randperm(len(batch.targets))
    actual, expected = ours.run(batch, order, 3), theirs.run(batch, order, 3)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    gradients = [each.optimizers["critic"].grad for each in (policy, plain)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_chunks_may_have_more_context_than_is_read() -> None:
    model = GPT2CriticConfig(context_length=3)
    policy = policy_of(SPACES["discrete"], model)
    ours, theirs, _ = both(policy, "critic")
    batch = trunk_chunks(9)  # of which eight steps are context
    order = torch.randperm(len(batch.targets))
    for num_minibatches in (1, 3):
        actual = ours.run(batch, order, num_minibatches)
        expected = theirs.run(batch, order, num_minibatches)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_columns_of_other_number_types_are_converted() -> None:
    policy = policy_of(SPACES["discrete"], MLPConfig())
    again = policy_of(SPACES["discrete"], MLPConfig())
    again.net.load_state_dict(policy.net.state_dict())
    rows, order = actor_rows(policy, NUM_ROWS), torch.randperm(NUM_ROWS)
    expected = policy.steps["actor"].run(rows, order, 3)
    other = rows._replace(advantages=rows.advantages.double(), actions=rows.actions.int())
    torch.testing.assert_close(again.steps["actor"].run(other, order, 3), expected)


@pytest.mark.parametrize("num_minibatches", [NUM_ROWS, NUM_ROWS // 2])
def test_minibatches_of_one_row_are_stepped(num_minibatches: int) -> None:
    policy = policy_of(SPACES["box"], MLPConfig(), **LOSSES["all terms"])
    ours, theirs, _ = both(policy, "actor")
    rows, order = actor_rows(policy, NUM_ROWS), torch.randperm(NUM_ROWS)
    actual, expected = (each.run(rows, order, num_minibatches) for each in (ours, theirs))
    torch.testing.assert_close(actual, expected, rtol=1e-2, atol=1e-3)


class OwnError(PPOPolicy):
    def critic_error(self, values: Tensor, batch: CriticChunks) -> Tensor:
        return (values - batch.targets).abs()


@pytest.mark.parametrize(
    ("kind", "model", "are_compiled"),
    [
        (PPOPolicy, MLPConfig(), [True, True]),
        (OwnLoss, MLPConfig(), [False, True]),
        (OwnError, MLPConfig(), [True, False]),
        (OwnOutputs, MLPConfig(), [True, False]),
        (OwnSampling, MLPConfig(), [False, True]),
        (OwnAdam, MLPConfig(), [False, False]),
        (OwnLayer, MLPConfig(), [False, False]),
        (Frozen, MLPConfig(), [False, False]),
        (PPOPolicy, MLPConfig(log_std="state"), [False, True]),
        (PPOPolicy, GPT2CriticConfig(), [True, True]),
        (PPOPolicy, GPT2CriticConfig(dropout=0.1), [True, False]),
        (PPOPolicy, GPT2CriticConfig(history_actions=True), [True, False]),
        (PPOPolicy, GPT2CriticConfig(time="absolute"), [True, False]),
        (PPOPolicy, GPT2CriticConfig(attention="window"), [True, False]),
        (PPOPolicy, GPT2CriticConfig(n_embd=24, n_head=4), [True, False]),
        (PPOPolicy, GPT2CriticConfig(actor_net="gpt2"), [True, True]),
        (PPOPolicy, GPT2CriticConfig(actor_net="gpt2", log_std="state"), [False, True]),
    ],
)
def test_only_known_nets_and_losses_are_compiled(
    kind: type[PPOPolicy], model: ModelConfig, are_compiled: list[bool]
) -> None:
    policy = policy_of(SPACES["box"], model, kind)
    steps = [policy.steps[name] for name in ("actor", "critic")]
    assert [isinstance(each, CompiledSteps) for each in steps] == are_compiled
    assert policy.learns_apart == any(are_compiled)


@pytest.fixture
def no_library() -> Iterator[None]:
    machine_code.build.cache_clear()
    yield
    machine_code.build.cache_clear()


def test_without_a_compiler_torch_takes_the_steps(
    no_library: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", "")
    policy = policy_of(SPACES["box"], MLPConfig())
    with caplog.at_level(logging.WARNING):
        assert not policy.learns_apart
    assert all(isinstance(each, MinibatchStep) for each in policy.steps.values())
    [line] = [each for each in caplog.messages if "compiler" in each]
    assert "cc, gcc, clang" in line
    assert "apt-get install gcc" in line


def test_a_compiler_that_fails_is_reported(
    no_library: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    for name in ("cc", "gcc", "clang"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} has no headers >&2; exit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    found, reason = machine_code.build()
    assert found is None
    assert all(f"{name} has no headers" in reason for name in ("cc", "gcc", "clang"))
    assert reason in caplog.text


def test_another_compiler_takes_the_place_of_one_that_fails(
    no_library: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cc").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert machine_code.library() is not None


def test_a_library_is_compiled_once(no_library: None, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert machine_code.library() is not None
    [library] = (tmp_path / ".cache/rl-service/compiled").iterdir()
    made_at = library.stat().st_mtime_ns
    machine_code.build.cache_clear()
    assert machine_code.library() is not None
    assert library.stat().st_mtime_ns == made_at


@pytest.mark.parametrize("home", ["a file in the way", "a damaged library", "none"])
def test_without_a_cache_it_is_compiled_each_time(
    home: str, no_library: None, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    if home == "a file in the way":
        (tmp_path / ".cache").touch()
    elif home == "none":
        monkeypatch.delenv("HOME")
        monkeypatch.setattr(Path, "expanduser", _no_home)
    else:
        assert machine_code.library() is not None
        [library] = (tmp_path / ".cache/rl-service/compiled").iterdir()
        library.unlink()
        library.write_bytes(b"")
        machine_code.build.cache_clear()
    assert machine_code.library() is not None


def _no_home(path: Path) -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_numbers_that_are_not_finite_stay_visible() -> None:
    policy = policy_of(SPACES["discrete"], NETS["default"])
    rows = actor_rows(policy, NUM_ROWS)._replace(advantages=torch.full((NUM_ROWS,), float("nan")))
    stepped = policy.steps["actor"].run(rows, torch.arange(NUM_ROWS), 2)
    assert np.isnan(stepped.loss.numpy()).all()
    assert not policy.optimizers["actor"].vector.isfinite().all()
