"""Bundles: what is written is what is loaded."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2Model

from custom_models.configs import GPT2CriticConfig, LLMPolicyConfig, MLPConfig
from custom_models.history import History
from custom_models.interfaces import Chunks
from custom_models.model_config import GPT2CriticSettings, ModelConfig
from custom_models.nets import build_actor_critic
from custom_models.spaces import ActionSpec
from rl_service.common.errors import BundleError, OutputError
from rl_service.config.settings import EnvSettings
from rl_service.policies import load_bundle, write_bundle
from rl_service.policies.bundle import read_critic
from rl_service.policies.locate import find_policy
from tests.conftest import WriteTestBundle
from tests.support.environments import env_spaces
from tests.support.locks import Locks

GPT2_SIZES = {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 64, "vocab_size": 4}
MODELS = [MLPConfig(), GPT2CriticConfig(), MLPConfig(hidden_sizes=(), log_std="state")]


def observations(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(100, *shape)).astype(np.float32)


@pytest.mark.parametrize("env_id", ["LunarLander-v3", "BipedalWalker-v3", "Pendulum-v1"])
@pytest.mark.parametrize("model", MODELS, ids=["mlp", "gpt2_critic", "linear"])
def test_a_loaded_policy_is_the_one_that_was_written(
    tmp_path: Path, write_test_bundle: WriteTestBundle, env_id: str, model: ModelConfig
) -> None:
    net = write_test_bundle(tmp_path / "b", env_id, model=model)
    policy = load_bundle(tmp_path / "b")
    obs = observations(policy.observation_shape)
    with torch.no_grad():
        expected = net.actor(torch.from_numpy(obs)).numpy()
    answers = policy.act(obs, deterministic=True).dist_inputs
    assert np.abs(answers - expected).max() <= 1e-6


def test_the_observation_filter_travels_with_the_policy(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    net = write_test_bundle(tmp_path / "b", "Pendulum-v1", filtered=True)
    policy = load_bundle(tmp_path / "b")
    obs = observations((3,))
    filtered = (obs - np.array([-1.0, 0.0, 1.0])) / np.array([0.5, 1.25, 2.0])
    with torch.no_grad():
        expected = net.actor(torch.from_numpy(filtered.astype(np.float32))).numpy()
    assert policy.act(obs, deterministic=True).dist_inputs == pytest.approx(expected, abs=1e-5)


def test_the_files_are_json_safetensors_and_a_card(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "b", max_episode_steps=77)
    assert sorted(os.listdir(tmp_path / "b")) == ["card.md", "policy.json", "policy.safetensors"]
    spec = json.loads((tmp_path / "b" / "policy.json").read_text())
    assert spec["format_version"] == 3
    assert spec["env"]["max_episode_steps"] == 77
    assert spec["action_space"] == {"type": "Discrete", "n": 2, "start": 0}
    assert spec["action_mapping"] == "offset"
    assert spec["observation_filter"] is None
    assert (spec["value_mean"], spec["value_std"]) == (1.5, 2.0)
    assert spec["evaluation"] == {"episode_return_mean": 9.5}
    assert len(spec["parity"]["observations"]) == 8
    card = (tmp_path / "b" / "card.md").read_text()
    assert card.startswith("# mlp on CartPole-v1\n")
    assert "| episode_return_mean | 9.5 |" in card


def test_the_spec_of_a_loaded_policy_gives_back_the_spaces(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "b", "BipedalWalker-v3", model=GPT2CriticConfig(context_length=9))
    spec = load_bundle(tmp_path / "b").spec
    observation_space, action_space = env_spaces(EnvSettings(id="BipedalWalker-v3"))
    assert spec.observation_space.to_action_spec() == ActionSpec.from_space(observation_space)
    assert spec.action_spec == ActionSpec.from_space(action_space)
    assert spec.context_length == 9
    assert spec.provenance == {"run": "test"}


@pytest.mark.parametrize("kind", ["gpt2_critic", "llm_policy"])
def test_a_critic_that_began_as_a_pretrained_gpt2_is_read_without_its_folder(
    tmp_path: Path, write_test_bundle: WriteTestBundle, kind: str
) -> None:
    folder = tmp_path / "gpt2"
    GPT2Model(GPT2Config(**GPT2_SIZES)).save_pretrained(folder)
    gpt2 = {"pretrained": str(folder), "context_length": 4}
    model = (
        GPT2CriticConfig(**gpt2)
        if kind == "gpt2_critic"
        else LLMPolicyConfig(critic="gpt2", gpt2_critic=GPT2CriticSettings(**gpt2))
    )
    net = write_test_bundle(tmp_path / "b", model=model)
    shutil.rmtree(folder)
    critic, spec = read_critic(tmp_path / "b")
    settings = spec.model.gpt2_settings
    assert settings is not None
    assert (settings.pretrained, settings.n_layer, settings.n_embd) == (None, 1, 8)
    assert net.critic is not None
    chunks = Chunks(
        obs=torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0)),
        actions=torch.ones(2, 6, dtype=torch.int64),
        rewards=torch.zeros(2, 6),
        timesteps=torch.arange(6).repeat(2, 1),
        segment_ids=torch.zeros(2, 6, dtype=torch.int64),
    )
    torch.testing.assert_close(critic(chunks, 6), net.critic.eval()(chunks, 6))


def test_the_critic_of_a_gpt2_of_unusual_make_is_refused(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    GPT2Model(GPT2Config(**GPT2_SIZES, n_inner=12)).save_pretrained(tmp_path / "gpt2")
    model = GPT2CriticConfig(pretrained=str(tmp_path / "gpt2"), context_length=4)
    write_test_bundle(tmp_path / "b", model=model)
    load_bundle(tmp_path / "b")
    with pytest.raises(BundleError, match=r"whose sizes policy\.json does not record"):
        read_critic(tmp_path / "b")


def test_a_second_bundle_replaces_the_first(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "b", "Pendulum-v1", seed=1)
    write_test_bundle(tmp_path / "b", "CartPole-v1", seed=2)
    assert load_bundle(tmp_path / "b").spec.env.id == "CartPole-v1"
    assert os.listdir(tmp_path) == ["b"]


def write_broken(path: Path, weight: float = 0.0, evaluation: dict[str, Any] | None = None) -> None:
    env = EnvSettings(id="CartPole-v1")
    observation_space, action_space = env_spaces(env)
    net = build_actor_critic(MLPConfig(), 4, ActionSpec.from_space(action_space))
    with torch.no_grad():
        next(net.critic.parameters()).view(-1)[0] = weight
    write_bundle(
        path,
        net=net,
        spaces=(observation_space, action_space),
        env=env,
        normalizer=None,
        value_scale=(0.0, 1.0),
        evaluation=evaluation or {},
        provenance={},
    )


@pytest.mark.parametrize("weight", [math.nan, math.inf])
def test_a_net_that_is_not_finite_is_never_written(tmp_path: Path, weight: float) -> None:
    with pytest.raises(BundleError, match=r"weight critic\..* holds NaN or infinite"):
        write_broken(tmp_path / "b", weight)
    assert not (tmp_path / "b").exists()


def test_a_score_that_is_not_finite_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"evaluation\.mean.*finite number"):
        write_broken(tmp_path / "b", evaluation={"mean": math.nan})
    assert not (tmp_path / "b").exists()


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError) as raised:
        write_broken(tmp_path / "file" / "b")
    assert "\n" not in str(raised.value)


def test_a_policy_of_large_observations_is_written_and_read(tmp_path: Path) -> None:
    space = gym.spaces.Box(-1.0, 1.0, (28_224,))
    spec = ActionSpec.from_space(gym.spaces.Discrete(2))
    config = MLPConfig(hidden_sizes=(4,), critic_hidden_sizes=(4,))
    write_bundle(
        tmp_path / "b",
        net=build_actor_critic(config, 28_224, spec),
        spaces=(space, gym.spaces.Discrete(2)),
        env=EnvSettings(id="CartPole-v1"),
        normalizer=None,
        value_scale=(0.0, 1.0),
        evaluation={},
        provenance={},
    )
    policy, obs = load_bundle(tmp_path / "b"), np.zeros((1, 28_224), np.float32)
    assert policy.act(obs, deterministic=True).env_actions.shape == (1,)


LOCKS = "tests.support.locks:Locks"
SPACES_MODELS = {
    "mlp": MLPConfig(hidden_sizes=(8,)),
    "stack": MLPConfig(actor_net="stack", actor_context_length=3, history_actions=True),
}


@pytest.mark.parametrize("filtered", [True, False])
@pytest.mark.parametrize("model", SPACES_MODELS.values(), ids=SPACES_MODELS)
def test_a_policy_of_many_spaces_is_written_and_read(
    tmp_path: Path, write_test_bundle: WriteTestBundle, model: ModelConfig, filtered: bool
) -> None:
    write_test_bundle(tmp_path / "b", LOCKS, model=model, filtered=filtered)
    policy, env = load_bundle(tmp_path / "b"), Locks()
    spec = policy.spec
    assert spec.action_spec == ActionSpec.from_space(env.action_space)
    assert (spec.observed_space.size, policy.observation_shape) == (14, (14,))
    for recorded in spec.parity.observations:  # as if the environment had given them
        again = spec.observed_space.flatten(spec.observed_space.unflatten(np.array(recorded)))
        np.testing.assert_array_equal(again, np.array(recorded, np.float32))
    answered = set()
    obs, _ = env.reset(seed=0)
    for _ in range(20):
        row, mask = policy.reader.read(obs)
        assert mask is not None
        expected = gym.spaces.flatten(
            env.observation_space, {**obs, "action_mask": np.zeros(10, np.int8)}
        )
        np.testing.assert_array_equal(row, expected[10:])  # the first of the sorted keys
        answer = policy.act(row[None], deterministic=True, mask=mask[None])
        obs, *_ = env.step(answer.env_actions[0])  # which raises at an illegal action
        answered.add(tuple(answer.actions[0].tolist()))
    assert len(answered) > 1
    text = (tmp_path / "b" / "card.md").read_text()
    assert "wheel: an integer from 3 to 6" in text
    assert "action: integers of shape [4]" in text


TEXT_MODEL: dict[str, Any] = {
    "observation": "text",
    "critic": "hidden_state",
    "n_layer": 1,
    "n_head": 2,
    "n_embd": 16,
}
TEXT_MODELS = {
    "head": LLMPolicyConfig(**TEXT_MODEL, context_length=3, max_prompt_tokens=100),
    "tokens": LLMPolicyConfig(**TEXT_MODEL, finetune="lora", action_scoring="tokens"),
}


@pytest.mark.parametrize("model", TEXT_MODELS.values(), ids=TEXT_MODELS)
def test_a_policy_of_texts_is_written_and_read(tmp_path: Path, model: LLMPolicyConfig) -> None:
    actions = gym.spaces.Discrete(20)
    net = build_actor_critic(model, 60, ActionSpec.from_space(actions))
    write_bundle(
        tmp_path / "b",
        net=net,
        spaces=(gym.spaces.Text(60), actions),
        env=EnvSettings(id="CartPole-v1", describe="info", max_text_length=60),
        normalizer=None,
        value_scale=(0.0, 1.0),
        evaluation={},
        provenance={},
    )
    policy = load_bundle(tmp_path / "b")
    given = "Which way?"
    if model.action_scoring == "tokens":
        given = {"text": given, "admissible_actions": ["go left", "no"]}
    row, mask = policy.reader.read(given)
    assert (mask is None) == (model.action_scoring == "head")
    first = policy.act(row[None], deterministic=True, mask=None if mask is None else mask[None])
    expected = net.actor.decide(
        History.first_steps(row[None], model.context_length, net.action_spec)
    )
    np.testing.assert_allclose(first.dist_inputs, expected.detach().numpy(), atol=1e-5)
    assert len(np.unique(first.dist_inputs)) > 2


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles as releases have written them, with what their actors answered then below.

    Version 1 is that of the zoo.
    """
    folder = tmp_path_factory.mktemp("earlier")
    archive = Path(__file__).with_name("earlier_bundles.tar.xz")
    shutil.unpack_archive(archive, folder, filter="data")
    return folder


def test_a_bundle_of_version_1_is_read() -> None:
    assert load_bundle(find_policy("zoo:lunarlander")).spec.format_version == 1


def test_a_bundle_of_version_2_acts_as_it_did(earlier: Path) -> None:
    policy = load_bundle(earlier / "version_2")
    assert policy.spec.format_version == 2
    assert not policy.spec.env.action_masks  # which it was trained without
    answer = policy.act([[0.1, -0.2, 0.03, 0.4], [1, 0, 0, -1]], deterministic=True)
    logits = [[-0.65348077, -0.01854692], [-0.8804227, 0.03458948]]
    np.testing.assert_allclose(answer.dist_inputs, logits, atol=1e-5)


@pytest.mark.parametrize(
    ("mask", "action", "log_prob"),
    [
        ([1] * 10, [0, 1, 0, 0], -2.047415),
        ([0, 1, 0, 1, 1, 0, 1, 1, 1, 1], [3, 0, 0, 0], -1.244898),
    ],
)
def test_a_bundle_of_version_3_acts_as_it_did(
    earlier: Path, mask: list[int], action: list[int], log_prob: float
) -> None:
    policy = load_bundle(earlier / "version_3")
    assert policy.spec.format_version == 3
    obs = {"wheel": 5, "code": [1, 0, 1], "rest": [[1, 2], [0.25, -0.5]], "action_mask": mask}
    row, allowed = policy.reader.read(obs)
    assert allowed is not None
    answer = policy.act(row[None], deterministic=True, mask=allowed[None])
    assert answer.env_actions.tolist() == [action]
    assert answer.log_prob[0] == pytest.approx(log_prob, abs=1e-5)
