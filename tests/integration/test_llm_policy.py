"""The language model as the policy inside real training: every algorithm, resume, bundles."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing

from custom_models.base_models import STORE_VARIABLE
from custom_models.configs import LLMPolicyConfig
from custom_models.history import History
from custom_models.language_model import load_language_model, load_tokenizer
from rl_service.algorithms.batch import build_learner_batch, critic_inputs
from rl_service.algorithms.minibatches import shuffled
from rl_service.cli.train import _resumed as resumed
from rl_service.common.errors import BundleError, CheckpointError, ObservationError
from rl_service.config.algorithms import A2CSettings, OnPolicySettings, PPOSettings, TRPOSettings
from rl_service.policies import load_bundle
from rl_service.policies.runner import PolicyRunner
from rl_service.rollout.fragments import ACTOR_INPUTS, LOSS_MASK, context_rows, segment_ids
from rl_service.serving.sources import find_sources
from rl_service.training.checks import check_settings
from rl_service.training.run import Run
from rl_service.training.train import train
from tests.conftest import Command
from tests.support.base_models import gpt2_tokenizer_folder
from tests.support.language_models import (
    FULL,
    LORA,
    ON_FEATURES,
    ON_GPT2,
    SMALL,
    TOKENS,
    case_id,
    check_learning,
)
from tests.support.recorder import Recorder
from tests.support.small_runs import small_settings

pytestmark = pytest.mark.usefixtures("local_ray")


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `rl-service models fetch` makes them: random weights, the GPT-2 tokenizer."""
    folder = tmp_path_factory.mktemp("base")
    config = SMALL.model_copy(
        update={"tokenizer": str(gpt2_tokenizer_folder()), "finetune": "full", "n_layer": 3}
    )
    tokenizer = load_tokenizer(config)
    load_language_model(config, len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def on(base_model: Path, **changes: Any) -> LLMPolicyConfig:
    """A policy on the first two layers of the base model."""
    keep = {"hidden_sizes": (16,), "critic_hidden_sizes": (16,), "num_layers": 2}
    return LLMPolicyConfig(pretrained=str(base_model), **keep, **changes)


@pytest.mark.parametrize(
    ("model", "algorithm", "env", "workers"),
    [
        (SMALL, A2CSettings, "Pendulum-v1", 0),
        (LORA, PPOSettings, "Pendulum-v1", 2),
        (FULL, TRPOSettings, "Pendulum-v1", 0),
        (ON_GPT2, PPOSettings, "CartPole-v1", 0),
        (TOKENS.model_copy(update=ON_FEATURES), A2CSettings, "CartPole-v1", 0),
    ],
    ids=case_id,
)
def test_every_way_of_learning_trains(
    model: LLMPolicyConfig,
    algorithm: type[OnPolicySettings],
    env: str,
    workers: int,
    tmp_path: Path,
) -> None:
    check_learning(model, algorithm, env, workers, tmp_path)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_inputs_that_rollout_ships_are_those_of_the_steps_themselves(env: str, build: Any) -> None:
    """Cached features equal recomputed ones, and context is of the same episode alone."""
    algorithm = build(small_settings(SMALL, env=env))
    policy = algorithm.learner_policy
    algorithm.env_runner.sample(30)  # later fragments start in mid-episode
    batch = {name: np.asarray(c) for name, c in algorithm.env_runner.sample(40).items()}
    segments = segment_ids(batch)
    assert not context_rows(batch, segments).any()  # its critic asks for none
    checked = 0
    for row in np.flatnonzero(batch[LOSS_MASK]):
        first = batch["t"][row] == 0
        if not first and segments[row - 1] != segments[row]:
            continue  # the step before was in the last fragment
        before = row if first else row - 1
        obs = batch["obs"][[before, row]]
        history = History(obs[None], batch["actions"][[before]][None], np.array([int(not first)]))
        again = policy.net.actor.encode(history)[0].numpy()
        np.testing.assert_allclose(batch[ACTOR_INPUTS][row], again, rtol=0, atol=1e-5)
        checked += 1
    assert checked >= 76


@pytest.mark.parametrize("finetune", ["head", "lora"])
def test_a_critic_on_the_hidden_state_reads_at_the_cut_what_the_actor_reads_there(
    finetune: str, build: Any
) -> None:
    model = SMALL.model_copy(update={**ON_FEATURES, "finetune": finetune, "context_length": 3})
    algorithm = build(small_settings(model, env="Pendulum-v1"))  # no episode ends here
    policy, worker = algorithm.learner_policy, algorithm.env_runner
    assert policy.net.critic.body[0].in_features == 16
    before = {name: np.asarray(column) for name, column in worker.sample(5).items()}
    after = {name: np.asarray(column) for name, column in worker.sample(5).items()}
    read = critic_inputs(policy, before, segment_ids(before))
    finals = ~before[LOSS_MASK] & ~context_rows(before, segment_ids(before))
    firsts = np.flatnonzero(after[LOSS_MASK] & (after["t"] == 5))
    inputs = torch.from_numpy(after[ACTOR_INPUTS][firsts])
    assert 0 < finals.sum() == len(firsts)
    expected = policy.net.actor.features(inputs)
    torch.testing.assert_close(read[finals], expected, rtol=0, atol=1e-5)
    assert not read.requires_grad  # the critic's gradient ends here


@pytest.mark.parametrize("algorithm", [PPOSettings, TRPOSettings], ids=["ppo", "trpo"])
def test_before_the_first_step_a_learner_in_bfloat16_finds_the_ratio_1(
    algorithm: type[OnPolicySettings], build: Any
) -> None:
    """Its workers sample in float32."""
    model = LORA.model_copy(update={"task": "Hold.\n"})
    base = small_settings(model, env="CartPole-v1", algorithm=algorithm)
    low = base.resources.model_copy(update={"learner_precision": "bfloat16"})
    policy = build(base.model_copy(update={"resources": low})).learner_policy
    samples = build(base).env_runner.sample(64)
    rows = build_learner_batch(policy, samples).actor
    for part in shuffled(rows, policy.permutation("actor", 64), 4):
        dist = policy.action_distribution(part)
        ratio = (dist.log_prob(part.actions) - part.action_logp).exp()
        torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=1e-6)
        kl = policy.sampling_distribution(part).kl(dist).detach()
        assert float(kl.abs().max()) < 1e-6


def test_weights_that_never_change_do_not_travel(build: Any) -> None:
    algorithm = build(small_settings(SMALL))
    names = set(algorithm.learner_policy.get_weights())
    assert names == {n for n in algorithm.learner_policy.net.actor.state_dict() if "body" in n} | {
        "head.mean.weight",
        "head.mean.bias",
        "head.log_std",
    }


@pytest.mark.parametrize("finetune", ["head", "lora"])
def test_a_bundle_holds_what_differs_from_its_base_model(
    finetune: str, base_model: Path, build: Any, tmp_path: Path
) -> None:
    settings = small_settings(
        on(base_model, finetune=finetune), iterations=1, output_dir=tmp_path, env="CartPole-v1"
    )
    run = Run.create(settings, command=[])
    result = train(settings, observer=Recorder(), run=run)
    assert result.policy is not None
    policy = load_bundle(result.policy, str(base_model))
    assert policy.spec.base_model is not None
    assert policy.spec.base_model.name == base_model.name
    assert result.registered is not None
    base_bytes = (base_model / "model.safetensors").stat().st_size
    assert (run.bundle_path / "policy.safetensors").stat().st_size < base_bytes / 10
    obs = np.zeros((3, 4), np.float32)
    assert policy.act(obs, deterministic=True).actions.shape == (3,)


def trained_on(base_model: Path, output_dir: Path) -> Run:
    """A run of one iteration with the language model of a folder."""
    settings = small_settings(
        on(base_model), iterations=1, output_dir=output_dir, env="CartPole-v1"
    )
    run = Run.create(settings, command=[])
    train(settings, observer=Recorder(), run=run)
    return run


def test_a_bundle_refuses_another_base_model(base_model: Path, tmp_path: Path, build: Any) -> None:
    own = tmp_path / "own_base"
    shutil.copytree(base_model, own)
    run = trained_on(own, tmp_path)
    weights = (own / "model.safetensors").read_bytes()
    (own / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(BundleError, match=r"needs the base model own_base: .*own_base is another"):
        load_bundle(run.bundle_path, str(own))
    with pytest.raises(BundleError, match=r"has no model own_base .* --base-model"):
        load_bundle(run.bundle_path)
    with pytest.raises(BundleError, match="no base model nowhere"):
        load_bundle(run.bundle_path, "nowhere")


def test_a_bundle_finds_its_base_model_by_its_contents_and_opens_no_path(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rl_service: Command
) -> None:
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "store"))
    own, store = tmp_path / "own_base", tmp_path / "store"
    shutil.copytree(base_model, own)
    run = trained_on(own, tmp_path)
    path = run.bundle_path / "policy.json"
    assert str(tmp_path) not in path.read_text()
    bundle, given = str(run.bundle_path), ("--base-model", str(own))
    assert "needs the base model own_base" in rl_service("evaluate", bundle, "-ne", "1").refusal
    assert rl_service("evaluate", bundle, "-ne", "1", *given).status == 0
    assert rl_service("policies", "register", bundle, *given).status == 0
    [source] = find_sources([bundle], None, str(own))
    assert (
        load_bundle(source.fetch(source.wanted()), source.base_model).spec.env.id == "CartPole-v1"
    )
    shutil.copytree(base_model, store / "another name")
    load_bundle(run.bundle_path)
    # As bundles were written earlier, by the path that training was given.
    spec = json.loads(path.read_text())
    spec["base_model"]["name"] = spec["model"]["pretrained"] = str(own)
    path.write_text(json.dumps(spec))
    load_bundle(run.bundle_path)
    (store / "another name").rename(tmp_path / "gone")
    with pytest.raises(BundleError, match="needs the base model own_base"):
        load_bundle(run.bundle_path)


def test_a_run_goes_on_where_its_base_model_lies_now(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Any
) -> None:
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "store"))
    own, moved = tmp_path / "own_base", tmp_path / "moved"
    shutil.copytree(base_model, own)
    run = trained_on(own, tmp_path)
    score = json.loads((run.bundle_path / "policy.json").read_text())["evaluation"]
    own.rename(moved)
    with pytest.raises(CheckpointError, match=r"needs its base model own_base: .* --base-model"):
        resumed(str(run.path), 2, [], None)
    with pytest.raises(CheckpointError, match="is another one"):
        resumed(str(run.path), 2, [], str(gpt2_tokenizer_folder()))
    run, loaded = resumed(str(run.path), 2, [], str(moved))
    result = train(loaded.settings, observer=Recorder(), run=run)
    assert (result.status, result.iterations) == ("finished", 2)
    best = load_bundle(str(result.policy), str(moved)).spec.evaluation
    assert best["episode_return_mean"] >= score["episode_return_mean"]
    assert len(list((tmp_path / "checkpoints").glob("*/*/*"))) == 1
    shutil.copytree(moved, tmp_path / "store" / "renamed")
    shutil.rmtree(moved)
    _, loaded = resumed(str(run.path), 3, [], None)
    assert loaded.settings.model.base_model == str(tmp_path / "store" / "renamed")


def test_a_run_whose_prompts_had_other_tokens_is_refused(tmp_path: Path, build: Any) -> None:
    """As those of earlier releases had, where a tokenizer adds BOS."""
    tokenizer = load_tokenizer(SMALL)
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        "<s> $A", "<s> $A $B", [("<s>", tokenizer.bos_token_id)]
    )
    tokenizer.save_pretrained(tmp_path / "base")
    (tmp_path / "base" / "config.json").write_text('{"model_type": "gpt2"}')
    model = SMALL.model_copy(update={"tokenizer": str(tmp_path / "base")})
    settings = small_settings(model, env="CartPole-v1")
    first = build(settings)
    first.train()
    first.save_checkpoint(str(tmp_path))
    build(settings).load_checkpoint(str(tmp_path))
    path = tmp_path / "training_state.pt"
    state = torch.load(path, weights_only=True)
    del state["whole_prompts"]
    torch.save(state, path)
    with pytest.raises(CheckpointError, match="tokenised prompts in pieces"):
        build(settings).load_checkpoint(str(tmp_path))


def test_folders_that_are_no_language_model_are_refused_before_anything_starts(
    base_model: Path, tmp_path: Path
) -> None:
    def problem(change: Callable[[Path], object]) -> str:
        own = tmp_path / "own"
        shutil.copytree(base_model, own)
        change(own)
        (found,) = check_settings(small_settings(on(own), env="CartPole-v1"))
        shutil.rmtree(own)
        return found

    assert "own has no model.safetensors" in problem(
        lambda own: (own / "model.safetensors").rename(own / "pytorch_model.bin")
    )
    assert "model.safetensors is truncated" in problem(
        lambda own: (own / "model.safetensors").write_bytes(b"\x08")
    )
    assert "own has no tokenizer" in problem(
        lambda own: [
            path.unlink()
            for path in own.glob("*")
            if path.name[0] in "tmv" and "safe" not in path.name
        ]
    )
    assert "the tokenizer in" in problem(lambda own: (own / "tokenizer.json").write_text("{}"))
    assert "cannot be read" in problem(lambda own: (own / "config.json").write_text("{"))
    assert "which is not a causal language model" in problem(
        lambda own: (own / "config.json").write_text('{"model_type": "vit"}')
    )


def test_a_prompt_beyond_the_models_positions_is_refused_before_anything_starts() -> None:
    settings = small_settings(SMALL.model_copy(update={"context_length": 60}))
    problems = check_settings(settings)
    assert len(problems) == 1
    assert "takes up to" in problems[0]
    assert "reads 1024; lower model.context_length" in problems[0]


def test_more_layers_than_there_are_and_a_missing_model_are_refused(base_model: Path) -> None:
    model = on(base_model).model_copy(update={"num_layers": 4})
    assert check_settings(small_settings(model)) == [
        f"model.num_layers=4, and {base_model} has 3 layers; use at most 3"
    ]
    missing = on(Path("no/such/model"))
    (problem,) = check_settings(small_settings(missing))
    assert "no/such/model" in problem


def test_a_history_of_the_wrong_length_is_refused(build: Any) -> None:
    policy = build(small_settings(SMALL, env="CartPole-v1")).learner_policy
    runner = PolicyRunner(policy.net.actor, (4,), policy.action_spec, None)
    obs = np.zeros((1, 4), np.float32)
    for earlier, last in ((2, 0.0), (1, np.nan)):
        steps = np.full((1, earlier + 1, 4), last, np.float32)
        history = History(steps, np.zeros((1, earlier), np.int64), np.ones(1, np.int64))
        with pytest.raises(ObservationError, match="does not hold 1 earlier steps"):
            runner.act(obs, deterministic=True, history=history)


def test_a_run_does_not_go_on_with_another_base_model(
    base_model: Path, tmp_path: Path, build: Any
) -> None:
    own = tmp_path / "own_base"
    shutil.copytree(base_model, own)
    settings = small_settings(on(own), env="CartPole-v1")
    build(settings).save_checkpoint(str(tmp_path))
    config = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps({**config, "layer_norm_epsilon": 0.1}))
    with pytest.raises(CheckpointError, match="written with another base model"):
        build(settings).load_checkpoint(str(tmp_path))


def test_a_folder_with_other_weights_is_read_again(base_model: Path, tmp_path: Path) -> None:
    own = tmp_path / "own_base"
    shutil.copytree(base_model, own)
    size = len(load_tokenizer(on(own)))
    first = load_language_model(on(own), size)
    assert load_language_model(on(own), size) is first
    load_language_model(on(own, random_weights=True, finetune="full"), size).save_pretrained(own)
    assert load_language_model(on(own), size) is not first


def test_a_bundle_without_its_base_model_in_the_json_is_refused(
    base_model: Path, tmp_path: Path
) -> None:
    settings = small_settings(on(base_model), iterations=1, output_dir=tmp_path, env="CartPole-v1")
    run = Run.create(settings, command=[])
    train(settings, observer=Recorder(), run=run)
    path = run.bundle_path / "policy.json"
    spec = json.loads(path.read_text())
    path.write_text(json.dumps({**spec, "base_model": None}))
    with pytest.raises(BundleError, match="base_model does not fit the model"):
        load_bundle(run.bundle_path)


def test_random_weights_keep_the_sizes_and_are_the_same_everywhere(base_model: Path) -> None:
    config = on(base_model, random_weights=True, finetune="full")
    size = len(load_tokenizer(config))
    first, second = (load_language_model(config, size).state_dict() for _ in range(2))
    pretrained = load_language_model(on(base_model, finetune="full"), size).state_dict()
    assert first.keys() == pretrained.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    wte = "transformer.wte.weight"
    assert not torch.equal(first[wte], pretrained[wte])
    assert first[wte].dtype == torch.float32


def test_a_policy_with_context_plays_as_it_was_sampled(build: Any) -> None:
    """Evaluation keeps the history: its inputs are the sampler's, step by step."""
    from rl_service.training.evaluation import evaluate

    settings = small_settings(SMALL, env="CartPole-v1")
    algorithm = build(settings)
    policy = algorithm.learner_policy
    seen: list[History] = []
    encode = policy.net.actor.encode

    def recording(history: History) -> torch.Tensor:
        seen.append(History(*(np.array(column) for column in history)))
        return encode(history)

    policy.net.actor.encode = recording
    runner = PolicyRunner(
        policy.net.actor, policy.observation_space.shape, policy.action_spec, None
    )
    result = evaluate(runner, settings.env, num_episodes=1, seed=3)
    env = gym.make("CartPole-v1", max_episode_steps=50)
    obs, _ = env.reset(seed=3)
    assert len(seen) == result.lengths[0]
    previous = None
    for history in seen:
        np.testing.assert_allclose(history.obs[0, -1], obs, rtol=0, atol=1e-6)
        assert history.num_steps[0] == (0 if previous is None else 1)
        if previous is not None:
            np.testing.assert_allclose(history.obs[0, 0], previous[0], rtol=0, atol=1e-6)
            assert history.actions[0, 0] == previous[1]
        with torch.no_grad():
            action = int(policy.net.actor(encode(history)).argmax())
        previous = (obs, action)
        obs, *_ = env.step(action)
