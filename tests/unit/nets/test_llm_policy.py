"""The language model as the policy against what must hold, on a tiny model with random weights."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from custom_models.configs import LLMPolicyConfig
from custom_models.distributions import distribution
from custom_models.history import History, RunningHistory
from custom_models.language_model import load_tokenizer
from custom_models.llm_policy import LLMActor
from custom_models.observation_text import PADDING
from custom_models.spaces import ActionSpec
from custom_models.text_prompts import build_writer
from rl_service.algorithms.optimizer import FlatParameters
from rl_service.algorithms.trpo import fisher_product
from tests.support.base_models import gpt2_tokenizer_folder

OBS_SIZE = 4
DISCRETE = ActionSpec.from_space(gym.spaces.Discrete(3))
BOX = ActionSpec.from_space(gym.spaces.Box(-2.0, 2.0, (2,)))
CHOICES = ActionSpec.from_space(gym.spaces.MultiDiscrete([3, 11]))
SPECS = pytest.mark.parametrize(
    "spec", [DISCRETE, BOX, CHOICES], ids=["discrete", "box", "choices"]
)


def small_config(**changes: Any) -> LLMPolicyConfig:
    return LLMPolicyConfig(**{"n_layer": 2, "n_head": 2, "n_embd": 16, **changes})


def build_actor(spec: ActionSpec = DISCRETE, **changes: Any) -> LLMActor:
    torch.manual_seed(0)
    return LLMActor(small_config(**changes), OBS_SIZE, spec)


def random_history(spec: ActionSpec, context_length: int, batch: int = 6) -> History:
    """Histories of all lengths."""
    rng = np.random.default_rng(0)
    earlier = context_length - 1
    if spec.kind == "discrete":
        actions: Any = rng.integers(0, spec.size, (batch, earlier))
    elif spec.kind == "multi_discrete":
        actions = rng.integers(0, spec.sizes, (batch, earlier, spec.size))
    else:
        actions = rng.normal(size=(batch, earlier, spec.size)).astype(np.float32)
    return History(
        rng.normal(scale=3.0, size=(batch, context_length, OBS_SIZE)).astype(np.float32),
        actions,
        np.arange(batch) % context_length,
    )


def one(history: History, index: int) -> History:
    return History(*(column[index : index + 1] for column in history))


@pytest.fixture(params=["characters", "gpt2"])
def tokenizer_name(request: pytest.FixtureRequest) -> str | None:
    return None if request.param == "characters" else str(gpt2_tokenizer_folder())


@pytest.mark.parametrize("decimals", [0, 2, 3])
@pytest.mark.parametrize("separator", [" ", ", "])
def test_the_text_of_an_observation_reads_back_to_its_decimals(
    tokenizer_name: str | None, decimals: int, separator: str
) -> None:
    config = small_config(tokenizer=tokenizer_name, decimals=decimals, separator=separator)
    writer = build_writer(config, load_tokenizer(config), OBS_SIZE, DISCRETE)
    obs = np.random.default_rng(1).normal(scale=5.0, size=(50, OBS_SIZE)).astype(np.float32)
    texts = writer.texts(History.first_steps(obs, 1, DISCRETE))
    read = [[float(number) for number in text.split(separator)] for text in texts]
    expected = np.clip(obs.astype(np.float64), -10.0, 10.0)
    assert np.abs(np.array(read) - expected).max() <= 0.5 * 10.0**-decimals + 1e-6
    assert all(text.count(".") == (OBS_SIZE if decimals else 0) for text in texts)


def test_a_prompt_holds_the_last_steps_of_its_episode_alone() -> None:
    config = small_config(context_length=3, decimals=1, action_names=("left", "stay", "right"))
    writer = build_writer(config, load_tokenizer(config), OBS_SIZE, DISCRETE)
    running = RunningHistory(2, 3, DISCRETE)
    texts = []
    for t in range(5):
        obs = np.full((2, OBS_SIZE), t, np.float32)
        obs[1] += 0.5
        texts.append(writer.texts(running.observed(obs)))
        running.acted(np.array([t % 3, 2]))
        if t == 2:
            running.forget([1])  # its episode ends here
    assert texts[0] == ["0.0 0.0 0.0 0.0", "0.5 0.5 0.5 0.5"]
    assert texts[1][0] == "0.0 0.0 0.0 0.0 -> left\n1.0 1.0 1.0 1.0"
    assert texts[4][0] == ("2.0 2.0 2.0 2.0 -> right\n3.0 3.0 3.0 3.0 -> left\n4.0 4.0 4.0 4.0")
    assert texts[3][1] == "3.5 3.5 3.5 3.5"
    assert texts[4][1] == "3.5 3.5 3.5 3.5 -> right\n4.5 4.5 4.5 4.5"


@SPECS
@pytest.mark.parametrize("context_length", [1, 3])
def test_no_prompt_is_longer_than_the_budget(spec: ActionSpec, context_length: int) -> None:
    config = small_config(context_length=context_length)
    writer = build_writer(config, load_tokenizer(config), OBS_SIZE, spec)
    history = random_history(spec, context_length)
    longest = history._replace(
        obs=np.full_like(history.obs, -10.0),
        actions=np.full_like(history.actions, 2 if spec is DISCRETE else -10),
        num_steps=np.full_like(history.num_steps, context_length - 1),
    )
    assert writer.prompts(history).shape[1] <= writer.max_tokens
    assert writer.prompts(longest).shape[1] == writer.max_tokens


@SPECS
@pytest.mark.parametrize("finetune", ["head", "lora", "full"])
@pytest.mark.parametrize("task", ["", "Keep the pole up.\n"])
def test_a_batch_is_so_many_single_calls(
    spec: ActionSpec, finetune: str, task: str, tokenizer_name: str | None
) -> None:
    """Rows are of different lengths, so left padding changes nothing either."""
    actor = build_actor(
        spec, finetune=finetune, task=task, context_length=3, tokenizer=tokenizer_name
    )
    history = random_history(spec, 3)
    with torch.no_grad():
        together = actor(actor.encode(history))
        alone = torch.cat([actor(actor.encode(one(history, i))) for i in range(6)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
    assert together.std(0)[0] > 1e-5  # and they do differ


def task_in_every_prompt(actor: LLMActor, inputs: Tensor) -> Tensor:
    """`dist_inputs` of an actor that does not know that the task is the same everywhere."""
    task, actor.writer.task_tokens = actor.writer.task_tokens, []
    whole = torch.cat([torch.tensor(task).expand(len(inputs), -1), inputs], dim=1)
    found: Tensor = actor(whole)
    actor.writer.task_tokens = task
    return found


@pytest.mark.parametrize("finetune", ["lora", "full"])
def test_a_task_that_is_read_once_counts_as_if_it_stood_in_every_prompt(finetune: str) -> None:
    actor = build_actor(finetune=finetune, task="Keep the pole up.\n", context_length=3)
    inputs = actor.encode(random_history(DISCRETE, 3))
    expected = task_in_every_prompt(actor, inputs)
    found = actor(inputs)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    learns = [p for p in actor.parameters() if p.requires_grad]
    gradients = [torch.autograd.grad(each.square().sum(), learns) for each in (found, expected)]
    assert any(gradient.any() for gradient in gradients[1])
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


def test_a_task_that_is_kept_is_read_again_once_something_has_learnt() -> None:
    actor = build_actor(finetune="full", task="Keep the pole up.\n")
    inputs = actor.encode(random_history(DISCRETE, 1))
    actor.open_cache()
    with torch.no_grad():
        before = actor(inputs)
        torch.testing.assert_close(before, task_in_every_prompt(actor, inputs), rtol=0, atol=1e-5)
    for _ in range(2):
        actor(inputs).sum().backward()
        with torch.no_grad():
            for p in actor.parameters():
                p += 0.05 * torch.randn_like(p)
            expected = task_in_every_prompt(actor, inputs)
            torch.testing.assert_close(actor(inputs), expected, rtol=0, atol=1e-5)
            assert (expected - before).abs().max() > 1e-2
            actor.open_cache()
            torch.testing.assert_close(actor(inputs), expected, rtol=0, atol=1e-5)


def test_a_task_is_read_again_in_another_precision() -> None:
    """As where a bundle is checked in float32 in the middle of a training in bfloat16."""
    history, task = random_history(DISCRETE, 1), "Keep the pole up.\n"
    expected = build_actor(task=task).encode(history)
    actor = build_actor(task=task)
    actor.autocast_dtype = torch.bfloat16
    assert not torch.equal(actor.encode(history), expected)
    actor.autocast_dtype = None
    assert torch.equal(actor.encode(history), expected)


def test_without_learning_the_language_model_never_runs_in_an_update() -> None:
    actor = build_actor(BOX)
    history = random_history(BOX, 1)
    inputs = actor.encode(history)
    assert inputs.shape == (6, 16)
    actor._trunk.forward = None
    with pytest.raises(TypeError):
        actor.encode(history)
    actor(inputs).sum().backward()
    assert all(p.grad is None for p in actor.language_model.parameters())
    assert all(p.grad is not None for p in actor.body.parameters())


@SPECS
@pytest.mark.parametrize("finetune", ["head", "lora", "full"])
def test_what_learns_moves_and_what_is_frozen_stays(spec: ActionSpec, finetune: str) -> None:
    actor = build_actor(spec, finetune=finetune).train()
    before = {name: p.detach().clone() for name, p in actor.named_parameters()}
    learning = set(actor.trainable_state())
    optimizer = torch.optim.SGD([p for p in actor.parameters() if p.requires_grad], lr=0.1)
    inputs = actor.encode(random_history(spec, 1, batch=32))
    weight = torch.randn(32, spec.num_dist_inputs)
    for _ in range(2):  # LoRA's first factor has no gradient before the second is non-zero
        optimizer.zero_grad()
        (actor(inputs) * weight).sum().backward()
        optimizer.step()
    moved = {name for name, p in actor.named_parameters() if not torch.equal(p, before[name])}
    # Rows of embeddings that no prompt uses, and positions beyond them, may be all that is left.
    assert moved == learning
    of_the_model = {name for name in learning if name.startswith("language_model")}
    assert bool(of_the_model) == (finetune != "head")
    assert all(("lora_" in name) == (finetune == "lora") for name in of_the_model)


def direct_scores(actor: LLMActor, history: History) -> Tensor:
    """Each prompt with each text as one sequence, token by token."""
    prompts = actor.writer.prompts(history)
    scores = torch.zeros(len(prompts), DISCRETE.size)
    for row, prompt in enumerate(prompts):
        start = [*actor.writer.task_tokens, *prompt[prompt != PADDING].tolist()]
        for action, text in enumerate(actor.writer.action_tokens):
            logits = actor.language_model(torch.tensor([start + text])).logits[0]
            log_probs = F.log_softmax(logits, -1)
            found = [log_probs[len(start) - 1 + i, token] for i, token in enumerate(text)]
            scores[row, action] = torch.stack(found).mean()
    return scores


@pytest.mark.parametrize("names", [("a", "b", "c"), ("left", "stay where you are", "right")])
@pytest.mark.parametrize("task", ["", "Keep the pole up.\n"])
@pytest.mark.parametrize("finetune", ["lora", "full"])
def test_token_scores_are_the_mean_log_probabilities_of_the_texts(
    names: tuple[str, ...], task: str, finetune: str, tokenizer_name: str | None
) -> None:
    actor = build_actor(
        action_scoring="tokens",
        finetune=finetune,
        action_names=names,
        task=task,
        context_length=2,
        tokenizer=tokenizer_name,
    )
    history = random_history(DISCRETE, 2)
    inputs = actor.encode(history)
    with torch.no_grad():
        expected = direct_scores(actor, history)
        torch.testing.assert_close(actor(inputs), expected, rtol=0, atol=1e-5)
    scores = actor(inputs)
    torch.testing.assert_close(scores.detach(), expected, rtol=0, atol=1e-5)
    scores.sum().backward()
    assert any(p.grad is not None and p.grad.any() for p in actor.parameters())


@pytest.mark.parametrize("scoring", ["head", "tokens"])
def test_micro_batches_change_neither_outputs_nor_gradients(scoring: str) -> None:
    outputs, gradients = [], []
    for size in (64, 2):
        actor = build_actor(finetune="full", micro_batch_size=size, action_scoring=scoring)
        out = actor(actor.encode(random_history(DISCRETE, 1)))
        out.square().sum().backward()
        outputs.append(out.detach())
        gradients.append([p.grad for p in actor.parameters()])
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=1e-6)
    for whole, split in zip(*gradients, strict=True):
        torch.testing.assert_close(whole, split, rtol=0, atol=1e-4)


@pytest.mark.parametrize("finetune", ["lora", "full"])
@pytest.mark.parametrize("size", [64, 2], ids=["at once", "in micro-batches"])
@SPECS
def test_the_fisher_product_passes_through_the_language_model(
    spec: ActionSpec, size: int, finetune: str
) -> None:
    """Against the second derivative of the KL divergence."""
    actor = build_actor(spec, finetune=finetune, micro_batch_size=size, task="Hold.\n")
    flat = FlatParameters(actor)
    inputs = actor.encode(random_history(spec, 1))
    read = partial(distribution, spec)
    product = fisher_product(flat, inputs, read, 0.0)
    whole = build_actor(spec, finetune=finetune, task="Hold.\n")
    parameters = [p for p in whole.parameters() if p.requires_grad]
    dist_inputs = whole(inputs)
    kl = read(dist_inputs.detach()).kl(read(dist_inputs)).mean()  # type: ignore[arg-type]
    slope = torch.autograd.grad(kl, parameters, create_graph=True)
    for seed in range(2):
        vector = torch.randn(len(flat.vector), generator=torch.Generator().manual_seed(seed))
        along = torch.cat([part.reshape(-1) for part in slope]) @ vector
        expected = torch.autograd.grad(along, parameters, retain_graph=True)
        together = torch.cat([part.reshape(-1) for part in expected])
        torch.testing.assert_close(product(vector), together, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("finetune", ["head", "lora"])
def test_low_precision_is_that_of_the_language_model_alone(finetune: str) -> None:
    actor = build_actor(BOX, finetune=finetune)
    history = random_history(BOX, 1)
    with torch.no_grad():
        plain = actor(actor.encode(history))
        actor.autocast_dtype = torch.bfloat16
        low = actor(actor.encode(history))
    assert low.dtype == torch.float32
    assert not torch.equal(plain, low)
    torch.testing.assert_close(plain, low, rtol=0, atol=2e-2)


def test_the_seeds_head_starts_near_zero_with_unit_deviation() -> None:
    actor = build_actor(BOX)
    with torch.no_grad():
        mean, log_std = actor(actor.encode(random_history(BOX, 1))).chunk(2, dim=-1)
    assert mean.abs().max() < 0.2
    assert torch.equal(log_std, torch.zeros_like(log_std))
    assert actor.head.mean.bias.abs().max() == 0.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"action_scoring": "tokens"}, "nothing would learn"),
        ({"num_layers": 2}, "needs model.pretrained; set that, too"),
        ({"pretrained": "x", "tokenizer": "y"}, "its own tokenizer"),
        ({"n_embd": 15}, "not divisible"),
        ({"action_names": ("left", "left ", "right")}, "names that are empty or equal"),
        ({"action_names": ("left", " ")}, "names that are empty or equal"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        small_config(**changes)


def test_names_for_another_number_of_actions_are_refused() -> None:
    with pytest.raises(ValueError, match="2 names for 3 discrete actions"):
        build_actor(action_names=("a", "b"))
    with pytest.raises(ValueError, match="2 names for 2 box actions"):
        build_actor(BOX, action_names=("a", "b"))


def test_choices_that_cannot_be_written_are_refused() -> None:
    many = ActionSpec.from_space(gym.spaces.MultiDiscrete([3, 12]))
    assert build_actor(many).decide(random_history(many, 1)).shape == (6, 15)
    with pytest.raises(ValueError, match=r"numbers up to 10, and .* 12 choices; use model\.contex"):
        build_actor(many, context_length=2)


def test_numbers_that_are_none_are_refused() -> None:
    history = random_history(DISCRETE, 1)
    history.obs[0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="NaN and infinite numbers"):
        build_actor().encode(history)


def test_loading_into_one_actor_leaves_others_alone() -> None:
    first, second = build_actor(), build_actor()
    history = random_history(DISCRETE, 1)
    before = first.encode(history)
    weights = {name: weight.clone() for name, weight in second.own_state().items()}
    name = "language_model.transformer.ln_f.weight"
    weights[name] += 1.0
    with pytest.raises(RuntimeError, match="frozen random weight"):
        second.load(weights)
    second.load_state_dict(weights, strict=False)
    assert torch.equal(first.encode(history), before)
    assert not torch.equal(second.encode(history), before)


def test_continuous_actions_have_no_text_to_score() -> None:
    with pytest.raises(ValueError, match="needs discrete actions"):
        build_actor(BOX, action_scoring="tokens", finetune="full")
