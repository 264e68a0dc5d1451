"""Text inside real training: what is learnt from is what was acted on, and it learns."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from custom_models.configs import LLMPolicyConfig
from custom_models.distributions import MASKED
from custom_models.history import History
from custom_models.language_model import load_tokenizer
from custom_models.observation_text import PADDING
from custom_models.text_rows import MAX_ACTIONS, read_row
from docs.examples.text_env import REMEDIES
from rl_service.algorithms.batch import build_learner_batch
from rl_service.common.errors import TrainingFailedError
from rl_service.config.algorithms import OnPolicySettings, PPOSettings, TRPOSettings
from rl_service.config.settings import EnvSettings, Settings
from rl_service.rollout.fragments import ACTOR_INPUTS, LOSS_MASK, segment_ids
from rl_service.training.checks import check_settings
from rl_service.training.trainer import Trainer
from tests.support.small_runs import MLP, small_settings

pytestmark = pytest.mark.usefixtures("local_ray")

WAYS = ("left", "down", "right", "up")
LAKE = {"id": "FrozenLake-v1", "describe": f"{__name__}:cell"}
NEEDS = {"id": "docs.examples.text_env:Needs"}
BASE: dict[str, Any] = {
    "observation": "text",
    "critic": "hidden_state",
    "hidden_sizes": (16,),
    "critic_hidden_sizes": (16,),
    "n_layer": 1,
    "n_head": 2,
    "n_embd": 32,
    "max_prompt_tokens": 200,
}
HEAD = LLMPolicyConfig(**BASE, action_names=WAYS, context_length=3, task="Walk to the goal.")
LORA = HEAD.model_copy(update={"finetune": "lora"})
NAMED = LORA.model_copy(update={"action_scoring": "tokens", "context_length": 1})
OFFERED = LLMPolicyConfig(
    **BASE, finetune="lora", action_scoring="tokens", task="Do what helps.", context_length=2
)


def cell(observation: Any) -> str:
    """For `env.describe`."""
    row, column = divmod(int(observation), 4)
    return f"You are in row {row}, column {column}."


def text_settings(
    model: LLMPolicyConfig, env: dict[str, Any], algorithm: type[OnPolicySettings] = PPOSettings
) -> Settings:
    base = small_settings(model, algorithm=algorithm)
    return base.model_copy(update={"env": EnvSettings(**env)})


@pytest.mark.parametrize("algorithm", [PPOSettings, TRPOSettings], ids=["ppo", "trpo"])
@pytest.mark.parametrize(
    ("model", "env"),
    [(HEAD, LAKE), (LORA, LAKE), (NAMED, LAKE), (OFFERED, NEEDS)],
    ids=["head", "lora", "names", "admissible"],
)
def test_before_the_first_step_the_ratio_is_1(
    model: LLMPolicyConfig,
    env: dict[str, Any],
    algorithm: type[OnPolicySettings],
    build: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And no update asks the tokenizer."""
    settings = text_settings(model, env, algorithm)
    assert check_settings(settings) == []
    built = build(settings)
    policy = built.learner_policy
    batch = build_learner_batch(policy, built.env_runner.sample(64))
    for name in ("_tokenizer", "_prompt_tokens", "_action_tokens"):
        monkeypatch.setattr(policy.net.actor.writer, name, None)
    rows = batch.actor
    with torch.enable_grad():  # as in an update, whose pass is another one
        dist = policy.action_distribution(rows)
    ratio = (dist.log_prob(rows.actions) - rows.action_logp).exp().detach()
    torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=1e-4)
    kl = policy.sampling_distribution(rows).kl(dist).detach()
    assert float(kl.abs().max()) < 1e-6
    before = [p.detach().clone() for p in policy.net.actor.parameters()]
    stats = policy.update_actor(batch)
    assert np.isfinite(list(stats.values())).all()
    after = policy.net.actor.parameters()
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_the_tokens_learnt_from_are_those_of_the_step(build: Any) -> None:
    """Prompt and actions in a batch are what the environment gave at the same step."""
    built = build(text_settings(OFFERED, NEEDS))
    writer = built.learner_policy.net.actor.writer
    decode = load_tokenizer(OFFERED).decode
    built.env_runner.sample(9)
    batch = {name: np.asarray(c) for name, c in built.env_runner.sample(40).items()}
    segments = segment_ids(batch)
    checked = 0
    for row in np.flatnonzero(batch[LOSS_MASK]):
        is_first = batch["t"][row] == 0
        if not is_first and (row == 0 or segments[row - 1] != segments[row]):
            continue  # the step before was in the last fragment
        before = row if is_first else row - 1
        obs = batch["obs"][[before, row]]
        history = History(obs[None], batch["actions"][[before]][None], np.array([not is_first]))
        inputs = batch[ACTOR_INPUTS][row]
        prompt, actions = inputs[:200], inputs[200:].reshape(MAX_ACTIONS, 16)
        shown = decode([*writer.task_tokens, *prompt[prompt != PADDING]])
        assert [shown] == ["Do what helps.\n" + text for text in writer.texts(history)]
        offered = read_row(obs[1])[1]
        assert [decode(each[each != PADDING]) for each in actions] == [
            *(f" {name}" for name in offered),
            *[""] * (MAX_ACTIONS - len(offered)),
        ]
        assert batch["actions"][row] < len(offered)
        logits = batch["action_dist_inputs"][row]
        np.testing.assert_array_equal(logits > MASKED, np.arange(MAX_ACTIONS) < len(offered))
        checked += 1
    assert checked >= 78


def test_the_documented_environment_of_text_is_solved() -> None:
    model = OFFERED.model_copy(update={"finetune": "full", "task": "", "context_length": 1})
    base = text_settings(model, NEEDS)
    algorithm = PPOSettings(
        train_batch_size=256,
        minibatch_size=64,
        num_epochs=4,
        actor_lr=3e-3,
        lr_schedule="constant",
    )
    evaluation = base.evaluation.model_copy(update={"num_episodes": 30})
    trainer = Trainer(base.model_copy(update={"algorithm": algorithm, "evaluation": evaluation}))
    try:
        before = trainer.evaluate().mean
        for _ in range(15):
            trainer.iterate()
        after = trainer.evaluate().mean
    finally:
        trainer.close()
    assert before < 1.5  # chance gives 0.6
    assert after == pytest.approx(3.0, abs=0.2)


def test_rollout_workers_read_text() -> None:
    base = text_settings(OFFERED, NEEDS)
    resources = base.resources.model_copy(update={"num_env_runners": 2})
    messages: list[str] = []
    trainer = Trainer(base.model_copy(update={"resources": resources}), messages.append)
    try:
        rows = [trainer.iterate() for _ in range(2)]
    finally:
        trainer.close()
    slow_start = "rollout workers are ready after"  # on a busy machine
    assert [text for text in messages if slow_start not in text] == []
    assert rows[-1]["num_env_runners"] == 2
    assert 0.0 < rows[-1]["entropy"] <= np.log(len(REMEDIES))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_prompt_that_is_too_long_ends_a_run_in_plain_words(workers: int) -> None:
    base = text_settings(OFFERED.model_copy(update={"max_prompt_tokens": 60}), NEEDS)
    resources = base.resources.model_copy(update={"num_env_runners": workers})
    trainer = Trainer(base.model_copy(update={"resources": resources}))
    match = r"^the policy cannot act: the prompt 'You are .* more than model.max_prompt_tokens=60"
    try:
        with pytest.raises(TrainingFailedError, match=match):
            trainer.iterate()
    finally:
        trainer.close()


@pytest.mark.parametrize("is_certain", [True, False])
def test_a_policy_that_tries_nothing_else_any_more_is_told_once(is_certain: bool) -> None:
    messages: list[str] = []
    trainer = Trainer(small_settings(MLP, env="CartPole-v1", actor_lr=1e-9), messages.append)
    head = trainer.algo.learner_policy.net.actor.head
    with torch.no_grad():
        head.logits.bias[1] = 20.0 * is_certain
    try:
        for iteration in range(7):
            trainer.iterate()
            assert len(messages) == (is_certain and iteration >= 4)
    finally:
        trainer.close()
    assert all("entropy has been below 1% of the largest for 5 iter" in text for text in messages)


@pytest.mark.parametrize(
    ("model", "env", "words"),
    [
        (MLP, LAKE, "are text, and model mlp reads numbers; use llm_policy, and set model.obs"),
        (
            LLMPolicyConfig(),
            NEEDS,
            "model llm_policy reads numbers; set model.observation=text and model.critic=hidden",
        ),
        (HEAD, {"id": "CartPole-v1"}, "observations of CartPole-v1 are numbers; set env.describe"),
        (HEAD, NEEDS, "texts that change from step to step, .* set model.action_scoring=tokens"),
    ],
    ids=["mlp", "numbers", "text", "head"],
)
def test_models_and_environments_that_do_not_fit_are_refused(
    model: Any, env: dict[str, Any], words: str
) -> None:
    found = check_settings(text_settings(model, env))
    assert len(found) == 1
    assert re.search(words, found[0])
