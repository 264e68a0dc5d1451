"""Learning in an environment of many spaces: what it forbids is never done, and never learned."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from custom_models.configs import MLPConfig
from custom_models.distributions import IS_MASKED
from custom_models.model_config import ModelConfig
from rl_service.algorithms.batch import build_learner_batch
from rl_service.algorithms.build import build_algorithm
from rl_service.config.algorithms import (
    A2CSettings,
    OnPolicySettings,
    PPOSettings,
    TRPOSettings,
)
from rl_service.config.settings import EnvSettings, Settings
from tests.support.small_runs import GPT2, GPT2_ACTOR, MLP, small_settings

pytestmark = pytest.mark.usefixtures("local_ray")

STACK = MLPConfig(actor_net="stack", actor_context_length=3, history_actions=True)
MODELS = {
    "mlp": MLP,
    "stack": STACK,
    "gpt2_critic": GPT2.model_copy(update={"history_actions": True}),
    "gpt2_actor": GPT2_ACTOR.model_copy(update={"history_actions": True}),
}
LOCKS = EnvSettings(id="tests.support.locks:Locks", max_failed_episodes=0)


def settings_of(model: ModelConfig, algorithm: type[OnPolicySettings], **kwargs: Any) -> Settings:
    small = small_settings(model, algorithm=algorithm, **kwargs)
    return small.model_copy(update={"env": LOCKS})


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("algorithm", [PPOSettings, A2CSettings, TRPOSettings])
def test_an_update_starts_from_what_acted_and_forbids_the_same(
    model: str, algorithm: type[OnPolicySettings]
) -> None:
    built = build_algorithm(settings_of(MODELS[model], algorithm))
    policy = built.learner_policy
    for _ in range(3):  # the environment raises at an illegal action, and none may fail
        rows = build_learner_batch(policy, built.env_runner.sample(64)).actor
        with torch.no_grad():
            dist = policy.action_distribution(rows)
            log_prob = dist.log_prob(rows.actions)
        steps = rows.loss_mask if rows.loss_mask is not None else ...
        ratio = rows.ratio(log_prob)[steps]
        torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=1e-4)
        masked = rows.dist_inputs[steps] < IS_MASKED
        assert masked.sum(1).unique().tolist() == [2]
        probs = torch.cat([part.log_probs.exp() for part in dist.parts], -1)[steps]
        assert probs[masked].max() == 0.0
        policy.update_actor(build_learner_batch(policy, built.env_runner.sample(64)))
    built.stop()
