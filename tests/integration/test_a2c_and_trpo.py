"""A2C and TRPO on real batches: what one update does, and all that every algorithm promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.policy.sample_batch import SampleBatch

from custom_models.distributions import distribution
from custom_models.model_config import ModelConfig
from docs.examples.train_from_python import train_policy
from rl_service.algorithms import trpo
from rl_service.algorithms.base import OnPolicyAlgorithm
from rl_service.algorithms.batch import build_learner_batch, compute_outputs
from rl_service.algorithms.trpo import Solution
from rl_service.config.algorithms import A2CSettings, OnPolicySettings, TRPOSettings
from rl_service.policies import load_bundle
from rl_service.rollout.fragments import LOSS_MASK, segment_ids
from rl_service.training.run import Run
from rl_service.training.train import train
from tests.support.small_runs import (
    GPT2,
    GPT2_ACTOR,
    MLP,
    KillsAWorker,
    assert_equal_weights,
    assert_resume_is_exact,
    small_settings,
    weights,
)

pytestmark = pytest.mark.usefixtures("local_ray")

ENVS = {"discrete": "CartPole-v1", "box": "Pendulum-v1"}


def sampled(algorithm: OnPolicyAlgorithm, vector_steps: int = 32) -> SampleBatch:
    batch: SampleBatch = algorithm.env_runner.sample(vector_steps)
    return batch


@pytest.mark.parametrize("env", ENVS.values(), ids=ENVS)
@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
def test_one_a2c_update_equals_a_hand_computed_gradient_step(
    env: str, optimizer: str, build: Any
) -> None:
    lr, entropy_coeff = 0.01, 0.02
    algorithm = build(
        small_settings(
            env=env,
            algorithm=A2CSettings,
            optimizer=optimizer,
            actor_lr=lr,
            entropy_coeff=entropy_coeff,
            grad_clip=None,
            lr_schedule="constant",
        )
    )
    policy = algorithm.learner_policy
    batch = build_learner_batch(policy, sampled(algorithm))
    rows, actor = batch.actor, policy.net.actor
    dist = distribution(policy.action_spec, actor(rows.inputs))
    loss = -(rows.advantages * dist.log_prob(rows.actions)).mean()
    loss = loss - entropy_coeff * dist.entropy().mean()
    before = [p.detach().clone() for p in actor.parameters()]
    gradients = torch.autograd.grad(loss, list(actor.parameters()))
    policy.update_actor(batch)
    for old, gradient, new in zip(before, gradients, actor.parameters(), strict=True):
        # A first step: moments start at zero, α is 0.99, ε 1e-5; Adam corrects its own to g and g².
        scale = (0.01 * gradient.square()).sqrt() if optimizer == "rmsprop" else gradient.abs()
        expected = old - lr * gradient / (scale + 1e-5)
        torch.testing.assert_close(new.detach(), expected, rtol=1e-4, atol=1e-6)


def test_a2c_takes_one_gradient_step_for_each_fragment(build: Any) -> None:
    algorithm = build(small_settings(algorithm=A2CSettings, optimizer="adam"))
    algorithm.train()
    assert algorithm.env_steps == 128
    state = algorithm.learner_policy.optimizers["actor"].optimizer.state
    assert [float(s["step"]) for s in state.values()] == [128 / (2 * 16)]


@pytest.mark.parametrize("env", ENVS.values(), ids=ENVS)
def test_with_lambda_0_the_advantage_is_the_one_step_td_error(env: str, build: Any) -> None:
    algorithm = build(small_settings(env=env, algorithm=A2CSettings, lambda_=0.0, gamma=0.9))
    algorithm.train()  # so that values are not all alike
    policy = algorithm.learner_policy
    samples = sampled(algorithm, 64)
    columns = {name: np.asarray(samples[name]) for name in samples}
    segments = segment_ids(columns)
    with torch.no_grad():
        outputs = policy.net.critic.values(torch.from_numpy(columns["obs"]))
    values = policy.denormalise_values(outputs.numpy())
    expected = []
    for i in np.flatnonzero(columns[LOSS_MASK]):
        following = 0.0
        if not columns["terminateds"][i]:
            assert segments[i + 1] == segments[i]
            following = values[i + 1]
        expected.append(columns["rewards"][i] + 0.9 * following - values[i])
    batch = build_learner_batch(policy, samples)
    np.testing.assert_allclose(batch.actor.advantages.numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("env", ENVS.values(), ids=ENVS)
@pytest.mark.parametrize("fraction", [1.0, 0.25])
def test_trpo_keeps_its_kl_limit_in_every_one_of_50_updates(
    env: str, fraction: float, build: Any
) -> None:
    delta = 0.01
    algorithm = build(
        small_settings(env=env, algorithm=TRPOSettings, max_kl=delta, fisher_fraction=fraction)
    )
    policy, num_accepted = algorithm.learner_policy, 0
    for _ in range(50):
        batch = build_learner_batch(policy, sampled(algorithm))
        stats = policy.update_actor(batch)
        with torch.no_grad():
            old = distribution(policy.action_spec, batch.actor.dist_inputs)
            new = distribution(policy.action_spec, policy.net.actor(batch.actor.inputs))
            kl = float(old.kl(new).mean())  # type: ignore[arg-type]
        assert kl <= 1.05 * delta
        assert stats["mean_kl_loss"] == pytest.approx(kl, abs=1e-5)
        assert stats["surrogate_after"] >= stats["surrogate_before"]
        num_accepted += int(stats["step_accepted"])
    assert num_accepted > 40


def test_trpo_refuses_a_step_that_makes_things_worse(
    build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = build(small_settings(algorithm=TRPOSettings))
    policy = algorithm.learner_policy
    batch = build_learner_batch(policy, sampled(algorithm))
    before = weights(algorithm)
    monkeypatch.setattr(
        trpo, "natural_step", lambda gradient, *_, **__: Solution(-1e-3 * gradient, 0.0)
    )
    stats = policy.update_actor(batch)
    assert (stats["step_accepted"], stats["mean_kl_loss"]) == (0.0, 0.0)
    assert stats["line_search_steps"] == policy.algorithm.line_search_steps
    assert stats["surrogate_after"] == stats["surrogate_before"]
    assert_equal_weights(weights(algorithm), before)


def test_trpo_pulls_a_deviation_back_from_its_bound(build: Any) -> None:
    algorithm = build(small_settings(algorithm=TRPOSettings))
    policy = algorithm.learner_policy
    batch = build_learner_batch(policy, sampled(algorithm))
    head = policy.net.actor.head
    with torch.no_grad():
        head.log_std.fill_(2.0)  # the upper bound
        rows = batch.actor
        at_bound = policy.net.actor(rows.inputs)
        mean = distribution(policy.action_spec, at_bound).mode()
        logp = distribution(policy.action_spec, at_bound).log_prob(mean)
    # The likeliest actions are the good ones: a smaller deviation would make them likelier yet.
    rows = rows._replace(actions=mean, action_logp=logp, dist_inputs=at_bound)
    rows = rows._replace(advantages=torch.linspace(0.5, 1.5, len(mean)))
    policy.algorithm = policy.algorithm.model_copy(update={"normalize_advantages": False})
    stats = policy.update_actor(batch._replace(actor=rows))
    assert stats["step_accepted"] == 1.0
    assert float(head.log_std.detach()) < 2.0


# Early returns hang on the timestep: a critic that sees it can fit them.
TIMED = GPT2.model_copy(update={"time": "absolute"})


@pytest.mark.parametrize("model", [MLP, TIMED], ids=["mlp", "gpt2_critic"])
def test_lbfgs_fits_the_critic_to_a_batch(model: ModelConfig, build: Any) -> None:
    algorithm = build(
        small_settings(model, algorithm=TRPOSettings, critic_optimizer="lbfgs", critic_l2=0.0)
    )
    policy = algorithm.learner_policy
    batch = build_learner_batch(policy, sampled(algorithm))
    policy.update_critic(batch)
    outputs = compute_outputs(policy, batch.critic.chunks, batch.critic.targets.shape[1])
    mask = batch.critic.loss_mask
    targets = policy.normalise_values(batch.critic.targets)
    error = float((outputs - targets)[mask].square().mean())
    assert error < 0.5 * float(targets[mask].var())


@pytest.mark.parametrize(
    ("algorithm", "model", "workers", "more"),
    [
        (A2CSettings, MLP, 0, {}),
        (A2CSettings, GPT2, 2, {}),
        (TRPOSettings, MLP, 2, {}),
        (TRPOSettings, GPT2, 0, {}),
        (TRPOSettings, GPT2, 0, {"critic_optimizer": "lbfgs"}),
        (A2CSettings, GPT2_ACTOR, 2, {}),
        (TRPOSettings, GPT2_ACTOR, 0, {"fisher_fraction": 0.5}),
    ],
    ids=[
        "a2c",
        "a2c, gpt2, workers",
        "trpo, workers",
        "trpo, gpt2",
        "lbfgs, gpt2",
        "a2c, gpt2 acts, workers",
        "trpo, gpt2 acts",
    ],
)
def test_resumed_training_equals_unbroken_training(
    algorithm: type[OnPolicySettings],
    model: ModelConfig,
    workers: int,
    more: dict[str, Any],
    tmp_path: Path,
    build: Any,
) -> None:
    settings = small_settings(model, workers=workers, algorithm=algorithm, **more)
    assert_resume_is_exact(build, settings, tmp_path, 1)


@pytest.mark.parametrize("algorithm", [A2CSettings, TRPOSettings], ids=["a2c", "trpo"])
def test_a_run_survives_a_killed_worker_and_leaves_a_bundle(
    algorithm: type[OnPolicySettings], tmp_path: Path
) -> None:
    settings = small_settings(
        GPT2, workers=2, iterations=6, output_dir=tmp_path, algorithm=algorithm
    )
    run = Run.create(settings, command=[])
    killer = KillsAWorker()
    result = train(settings, observer=killer, run=run)
    assert result.status == "finished"
    steps = [row["num_env_steps_sampled_lifetime"] for row in killer.rows]
    assert steps == [128 * i for i in range(1, 7)]
    assert result.algo == settings.algorithm.name
    observations = np.zeros((4, 3), np.float32)
    actions = load_bundle(run.bundle_path).act(observations, deterministic=True)
    assert actions.env_actions.shape == (4, 1)


@pytest.mark.parametrize(
    ("algorithm", "model"), [("ppo", "llm_policy"), ("a2c", "mlp"), ("trpo", "mlp")]
)
def test_the_documented_example_solves_the_corridor(
    algorithm: str, model: str, tmp_path: Path
) -> None:
    policy = load_bundle(
        train_policy(algorithm, model, tmp_path, ["algorithm.train_batch_size=512"])
    )
    cells = np.arange(8, dtype=np.float32)[:, None] / 8
    assert policy.act(cells, deterministic=True).env_actions.tolist() == [1] * 8
