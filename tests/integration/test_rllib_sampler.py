"""The vectorised worker against RLlib's own sampler: same seeds, same rows, same context."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.evaluation.rollout_worker import RolloutWorker
from ray.rllib.policy.sample_batch import SampleBatch

from custom_models.configs import GPT2CriticConfig, LLMPolicyConfig, MLPConfig
from custom_models.distributions import distribution
from custom_models.model_config import ModelConfig
from custom_models.rllib_models import CONTEXT_ACTIONS, CONTEXT_OBS
from custom_models.spaces import ActionSpec
from rl_service.algorithms.build import build_config
from rl_service.algorithms.ppo import PPOPolicy
from rl_service.config.algorithms import PPOSettings
from rl_service.config.settings import EnvSettings, ResourceSettings, Settings
from rl_service.rollout.fragments import ACTOR_INPUTS, COLUMNS, segment_ids
from rl_service.rollout.worker import VectorRolloutWorker, create_env
from rl_service.runtime.process import seed_process

pytestmark = pytest.mark.usefixtures("local_ray")

GPT2 = GPT2CriticConfig(context_length=6, n_head=2, n_embd=8)
LLM = LLMPolicyConfig(context_length=3, n_layer=1, n_head=2, n_embd=8)
LLM_2 = LLM.model_copy(update={"context_length": 2})
STACK = MLPConfig(actor_net="stack", actor_context_length=4, history_actions=True)
STACK_GPT2 = GPT2.model_copy(update={"actor_net": "stack", "actor_context_length": 2})
GPT2_ACTOR = GPT2.model_copy(
    update={"actor_net": "gpt2", "actor_context_length": 9, "history_actions": True, "n_layer": 2}
)


LOCKS = "tests.support.locks:Locks"


def build_worker(worker_class: Any, model: ModelConfig, env: str, num_envs: int) -> Any:
    kwargs = {"mask": "none"} if env == LOCKS else {}  # RLlib's sampler shows no info to a policy
    settings = Settings(
        env=EnvSettings(id=env, kwargs=kwargs, max_episode_steps=23),
        model=model,
        algorithm=PPOSettings(train_batch_size=40 * num_envs, minibatch_size=10),
        resources=ResourceSettings(num_env_runners=0, num_envs_per_env_runner=num_envs),
        seed=3,
    )
    seed_process(settings.seed)  # of the initial weights, as our worker does
    worker = worker_class(
        env_creator=create_env,
        default_policy_class=PPOPolicy,
        config=build_config(settings),
        worker_index=0,
        num_workers=0,
    )
    return worker


KEPT = {*COLUMNS, ACTOR_INPUTS} - {"eps_id"}


def sorted_rows(batch: SampleBatch) -> dict[str, Any]:
    """Columns with episodes in an order that does not depend on their ids."""
    segments = segment_ids({name: np.asarray(batch[name]) for name in batch})
    firsts = np.flatnonzero(np.diff(segments, prepend=-1))
    # An episode is known by its first observation, a stretch of it by its first step.
    keys = [(*np.round(batch["obs"][i], 5).tolist(), int(batch["t"][i])) for i in firsts]
    order = np.concatenate(
        [np.flatnonzero(segments == segments[firsts[k]]) for k in np.argsort(_ranks(keys))]
    )
    return {name: np.asarray(batch[name])[order] for name in batch if name in KEPT}


def _ranks(keys: list[tuple[float, ...]]) -> Any:
    order = sorted(range(len(keys)), key=keys.__getitem__)
    ranks = np.empty(len(keys), int)
    ranks[order] = np.arange(len(keys))
    return ranks


class DrawsEachStep:
    """Random numbers for one step at a time, as RLlib draws them."""

    def __init__(self, action_spec: ActionSpec, num_actions: int) -> None:
        self._spec = action_spec

    def __call__(self, dist_inputs: Any) -> Any:
        return distribution(self._spec, torch.from_numpy(dist_inputs)).sample().numpy()


@pytest.mark.parametrize(
    "model",
    [MLPConfig(), GPT2, LLM, LLM_2, STACK, STACK_GPT2, GPT2_ACTOR],
    ids=[
        "mlp",
        "gpt2_critic",
        "llm_policy",
        "llm_policy, K 2",
        "stack",
        "stack, gpt2_critic",
        "gpt2, gpt2_critic",
    ],
)
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_rows_equal_those_of_rllibs_own_sampler(
    model: ModelConfig, env: str, num_envs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_service.rollout.worker.Draws", DrawsEachStep)
    plain = build_worker(RolloutWorker, model, env, num_envs)
    vector = build_worker(VectorRolloutWorker, model, env, num_envs)
    assert_equal_rows(plain, vector)


@pytest.mark.parametrize("model", [MLPConfig(), STACK, GPT2_ACTOR], ids=["mlp", "stack", "gpt2"])
def test_rows_of_several_choices_equal_those_of_rllibs_own_sampler(
    model: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_service.rollout.worker.Draws", DrawsEachStep)
    plain, vector = (
        build_worker(kind, model, LOCKS, 3) for kind in (RolloutWorker, VectorRolloutWorker)
    )
    assert_equal_rows(plain, vector)


def assert_equal_rows(plain: Any, vector: Any) -> None:
    torch.manual_seed(1)
    expected_batches = [plain.sample().policy_batches["default_policy"] for _ in range(3)]
    torch.manual_seed(1)
    actual_batches = [vector.sample() for _ in range(3)]  # the later ones start in mid-episode
    for expected, actual in zip(expected_batches, actual_batches, strict=True):
        expected, actual = sorted_rows(expected), sorted_rows(actual)
        assert expected.keys() == actual.keys()
        for name, column in expected.items():
            np.testing.assert_allclose(actual[name], column, rtol=1e-5, atol=1e-6, err_msg=name)


def test_context_is_a_view_that_no_action_waits_for() -> None:
    worker = build_worker(VectorRolloutWorker, GPT2, "CartPole-v1", 1)
    views = worker.policy_map["default_policy"].view_requirements
    for column, source in ((CONTEXT_OBS, "obs"), (CONTEXT_ACTIONS, "actions")):
        assert views[column].data_col == source
        assert views[column].shift_arr.tolist() == [-5, -4, -3, -2, -1]
        assert not views[column].used_for_compute_actions
    acting = [name for name, view in views.items() if view.used_for_compute_actions]
    assert CONTEXT_OBS not in acting
    assert CONTEXT_ACTIONS not in acting


def test_context_beyond_k_steps_or_of_another_episode_never_travels() -> None:
    worker = build_worker(VectorRolloutWorker, GPT2, "CartPole-v1", 1)
    for _ in range(4):
        batch = worker.sample()
        context = np.flatnonzero(~batch["loss_mask"][: len(batch["t"]) - 1])
        leading = context[context < np.flatnonzero(batch["loss_mask"])[0]]
        assert len(leading) <= 5
        assert len(set(batch["eps_id"][: len(leading) + 1])) == 1
