"""Text as the observation of a language model: its prompts, and the actions' own texts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import GPT2Config

from custom_models.configs import LLMPolicyConfig
from custom_models.distributions import MASKED, distribution
from custom_models.history import History, RunningHistory
from custom_models.language_model import load_tokenizer
from custom_models.llm_policy import LLMActor
from custom_models.observation_text import PADDING
from custom_models.pretrained import prompt_problems
from custom_models.spaces import ActionSpec
from custom_models.text_prompts import TextPromptWriter
from custom_models.text_rows import MAX_ACTIONS, text_row
from rl_service.algorithms.optimizer import FlatParameters
from rl_service.algorithms.trpo import fisher_product
from tests.support.tokenizers import FAMILIES, built

ROW = 60
FOUR = ActionSpec.from_space(gym.spaces.Discrete(4))
OFFERED = ActionSpec.from_space(gym.spaces.Discrete(MAX_ACTIONS))
BOX = ActionSpec.from_space(gym.spaces.Box(-2.0, 2.0, (2,)))
WAYS = ("left", "down", "right", "up")
CHAT = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
WITHOUT_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no') }}{% endif %}"
OFFERS: list[tuple[str, list[str]]] = [
    ("A door.", ["open it", "go"]),
    ("A room with a key and two doors.", ["x", "take the key", "go north", "go south", "y"]),
    ("Dark.", [f"try {i}" for i in range(MAX_ACTIONS)]),
    ("One way.", ["go on", "a"]),
]


def text_config(**changes: Any) -> LLMPolicyConfig:
    base = {
        "observation": "text",
        "critic": "hidden_state",
        "max_prompt_tokens": 400,
        "n_head": 2,
        "n_embd": 16,
    }
    return LLMPolicyConfig(**{**base, **changes})


def scoring(**changes: Any) -> LLMPolicyConfig:
    return text_config(**{"action_scoring": "tokens", "finetune": "full", **changes})


def write(
    config: LLMPolicyConfig, spec: ActionSpec = FOUR, tokenizer: Any = None
) -> TextPromptWriter:
    return TextPromptWriter(tokenizer or load_tokenizer(config), spec, config)


def rows(texts: Sequence[str | tuple[str, list[str]]], length: int = 260) -> Any:
    pairs = [(each, []) if isinstance(each, str) else each for each in texts]
    return np.stack([text_row(text, actions, length) for text, actions in pairs])


def first(texts: Sequence[str | tuple[str, list[str]]], spec: ActionSpec = FOUR) -> History:
    return History.first_steps(rows(texts), 1, spec)


def in_chat(template: str = CHAT) -> Any:
    tokenizer = load_tokenizer(LLMPolicyConfig())
    tokenizer.chat_template = template
    return tokenizer


def actor_of(config: LLMPolicyConfig, spec: ActionSpec) -> LLMActor:
    torch.manual_seed(0)
    actor = LLMActor(config, 260, spec)
    with torch.no_grad():  # random models are nearly uniform; these are not
        for parameter in actor.language_model.parameters():
            parameter.mul_(3.0)
    return actor


def whole_rows(writer: TextPromptWriter, history: History) -> list[list[int]]:
    prompts = writer.prompts(history)
    return [[*writer.task_tokens, *prompt[prompt != PADDING].tolist()] for prompt in prompts]


def test_a_prompt_holds_task_steps_text_and_actions() -> None:
    config = scoring(task="Find the key.", context_length=3)
    writer, running = write(config, OFFERED), RunningHistory(2, 3, OFFERED)
    texts: list[list[str]] = []
    for t, action in enumerate([1, 0, 2, 0]):
        row = rows([(f"Room {t}", ["go", "look", "take"]), ("Alone\nhere", ["wait", "go"])])
        texts.append(writer.texts(running.observed(row)))
        running.acted(np.array([action, 0]))
        if t == 2:
            running.forget([1])  # its episode ends here
    assert writer.before == "Find the key.\n"
    assert texts[0][0] == "Room 0\nActions: go, look, take\nAction:"
    assert texts[3][0] == ("Room 1 -> go\nRoom 2 -> take\nRoom 3\nActions: go, look, take\nAction:")
    assert texts[2][1] == "Alone\nhere -> wait\n" * 2 + "Alone\nhere\nActions: wait, go\nAction:"
    assert texts[3][1] == "Alone\nhere\nActions: wait, go\nAction:"


def test_earlier_actions_have_their_names() -> None:
    config = text_config(context_length=2, action_names=WAYS)
    history = History(rows(["a", "b"])[None], np.array([[2]]), np.array([1]))
    assert write(config).texts(history) == ["a -> right\nb\nAction:"]
    vector = history._replace(actions=np.array([[[0.5, -1.25]]], np.float32))
    assert write(text_config(context_length=2), BOX).texts(vector) == [
        "a -> 0.50 -1.25\nb\nAction:"
    ]


def test_characters_that_the_small_tokenizer_lacks_are_question_marks() -> None:
    writer = write(text_config())
    prompt = writer.prompts(first(["A:\n- é, ⛄!"]))[0]
    assert load_tokenizer(text_config()).decode(prompt) == "A:\n- ?, ?!\nAction:"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", ["", "Keep the pole up.", "Go"])
def test_a_prompts_tokens_are_those_of_its_whole_text(family: str, task: str) -> None:
    config, tokenizer = scoring(task=task, chat_template=False), built(family)
    writer = write(config, OFFERED, tokenizer)
    texts = ["left", "\nnew line", "  blanks", "0.12 -> left", "stay here", "é!", "(go)"]
    history = first([(text, ["left", "stay here"]) for text in texts], OFFERED)
    wholes = [writer.before + text for text in writer.texts(history)]
    found = whole_rows(writer, history)
    assert found == tokenizer(wholes)["input_ids"]
    if task == "Keep the pole up.":
        assert len(writer.task_tokens) > 3
    actions = writer.actions(history)
    for prompt, whole, of_row in zip(found, wholes, actions, strict=True):
        for name, tokens in zip(["left", "stay here"], of_row, strict=False):
            expected = tokenizer(f"{whole} {name}")["input_ids"]
            assert prompt + tokens[tokens != PADDING].tolist() == expected
    assert (actions[:, 2:] == PADDING).all()


@pytest.mark.parametrize("offer", [["go", "end<|endoftext|>"], []])
def test_a_text_cannot_bring_control_tokens(offer: list[str]) -> None:
    tokenizer = built("gpt2")
    assert tokenizer("<|endoftext|>")["input_ids"] == [tokenizer.eos_token_id]
    writer = write(scoring(), FOUR, tokenizer)
    text = "A door." if offer else "A door.<|endoftext|>"
    with pytest.raises(ValueError, match=r"'<\|endoftext\|>', which is a control token"):
        writer.prompts(first([(text, offer)]))
    with pytest.raises(ValueError, match="control token"):
        writer.actions(first([(text, offer)]))
    writer.prompts(first([("A < door | ends? <endoftext>", ["go", "stay"])]))


def test_a_text_is_tokenised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = write(scoring(task="Go.", action_names=WAYS))
    before = writer.prompts(first(["a", "b"])), writer.actions(first(["a", "b"]))
    monkeypatch.setattr(writer, "_tokenizer", None)
    np.testing.assert_array_equal(writer.prompts(first(["a", "b", "a"]))[:2], before[0])
    np.testing.assert_array_equal(writer.actions(first(["b", "a"])), before[1])
    with pytest.raises(TypeError, match="not callable"):
        writer.prompts(first(["c"]))


def test_the_known_texts_do_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("custom_models.text_prompts._MOST_KNOWN", 5)
    writer = write(text_config())
    for start in range(0, 12, 3):
        texts = [f"text {i}" for i in range(start, start + 3)]
        lengths = [len(f"{text}\nAction:") for text in texts]
        assert [len(row) for row in whole_rows(writer, first(texts))] == lengths
    assert len(writer._prompt_tokens._tokens) <= 5


def test_nor_do_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """16,384 prompts of 4096 tokens took 400 MB in each process."""
    monkeypatch.setattr("custom_models.text_prompts._MOST_TOKENS", 100, raising=False)
    writer = write(text_config())
    for start in range(0, 12, 3):
        texts = [f"{'text ' * 4}{i}" for i in range(start, start + 3)]  # of about 30 tokens each
        lengths = [len(f"{text}\nAction:") for text in texts]
        assert [len(row) for row in whole_rows(writer, first(texts))] == lengths
        assert sum(map(len, writer._prompt_tokens._tokens.values())) <= 100


@pytest.mark.parametrize(
    ("template", "task", "before"),
    [
        (CHAT, "Find it.", "<system>Find it.</>\n<user>"),
        (CHAT, "", "<user>"),
        (WITHOUT_SYSTEM + CHAT, "Find it.", "<user>Find it.\n"),
    ],
    ids=["system", "no task", "no system role"],
)
def test_the_chat_template_stands_around_the_text(template: str, task: str, before: str) -> None:
    tokenizer, config = in_chat(template), scoring(task=task)
    writer = write(config, OFFERED, tokenizer)
    history = first([("A door.", ["open it", "go"])], OFFERED)
    [row] = whole_rows(writer, history)
    assert tokenizer.decode(row) == f"{before}A door.\nActions: open it, go</>\n<assistant>"
    assert tokenizer.decode(writer.task_tokens) == before
    first_action = writer.actions(history)[0, 0]
    assert tokenizer.decode(first_action[first_action != PADDING]) == "open it"
    plain = write(scoring(task=task, chat_template=False), OFFERED, tokenizer)
    assert plain.texts(history) == ["A door.\nActions: open it, go\nAction:"]


@pytest.mark.parametrize("template", ["always the same", CHAT + CHAT, "{{ nothing.at.all }}"])
def test_a_chat_template_that_does_not_show_the_text_once_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match=r"use model\.chat_template=false"):
        write(text_config(task="Go."), FOUR, in_chat(template))


def test_an_actor_reads_the_chat_template_of_its_tokenizers_folder(tmp_path: Path) -> None:
    in_chat().save_pretrained(tmp_path)
    GPT2Config().save_pretrained(tmp_path)
    actor = actor_of(text_config(tokenizer=str(tmp_path), task="Go."), FOUR)
    assert actor.prompts(first(["a"])) == ["<system>Go.</>\n<user>a</>\n<assistant>"]
    assert actor.decide(first(["a"])).shape == (1, 4)


def one_by_one(actor: LLMActor, history: History, names: list[list[str]]) -> Tensor:
    """The score of each action from one pass over the whole text, without padding and cache."""
    tokenizer = load_tokenizer(actor.config)
    expected = torch.full((len(names), actor.writer._action_spec.size), MASKED)
    for row, (prompt, own) in enumerate(zip(actor.prompts(history), names, strict=True)):
        start = tokenizer(prompt)["input_ids"]
        for column, name in enumerate(own):
            whole = tokenizer(f"{prompt} {name}")["input_ids"]
            log_probs = F.log_softmax(actor.language_model(torch.tensor([whole])).logits[0], -1)
            found = [log_probs[i - 1, whole[i]] for i in range(len(start), len(whole))]
            total = torch.stack(found).sum()
            normal = actor.config.length_normalization
            expected[row, column] = total / len(found) if normal else total
    return expected


@pytest.mark.parametrize("normal", [True, False], ids=["mean", "sum"])
@pytest.mark.parametrize("task", ["", "Find the key."])
@pytest.mark.parametrize("finetune", ["lora", "full"])
def test_each_env_scores_its_own_actions(normal: bool, task: str, finetune: str) -> None:
    config = scoring(task=task, finetune=finetune, length_normalization=normal)
    actor, history = actor_of(config, OFFERED), first(OFFERS, OFFERED)
    names = [own for _, own in OFFERS]
    inputs = actor.encode(history)
    assert inputs.shape == (4, actor.num_inputs)
    with torch.no_grad():
        expected = one_by_one(actor, history, names)
        acted = actor(inputs)
    torch.testing.assert_close(acted, expected, rtol=1e-5, atol=2e-5)
    assert [int((row > MASKED).sum()) for row in acted] == [2, 5, 20, 2]
    assert acted[1, :5].std() > 0.05  # they do differ
    scores = actor(inputs)
    torch.testing.assert_close(scores.detach(), expected, rtol=1e-5, atol=2e-5)
    F.log_softmax(scores, -1)[:, 0].sum().backward()
    gradients = [p.grad for p in actor.parameters() if p.grad is not None]
    assert any(gradient.any() for gradient in gradients)
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_fixed_actions_are_scored_by_their_names() -> None:
    actor = actor_of(scoring(action_names=("a", "go down", "right", "up")), FOUR)
    history = first(["At 3.", "At 12, by the lake."])
    names = [list(actor.writer.action_names)] * 2
    with torch.no_grad():
        expected = one_by_one(actor, history, names)
        torch.testing.assert_close(actor.decide(history), expected, rtol=1e-5, atol=2e-5)


def test_micro_batches_of_ragged_actions_change_nothing() -> None:
    outputs = []
    for size in (64, 1):
        actor = actor_of(scoring(micro_batch_size=size), OFFERED)
        out = actor(actor.encode(first(OFFERS, OFFERED)))
        F.log_softmax(out, -1)[:, 1].sum().backward()
        gradients = [p.grad for p in actor.parameters() if p.grad is not None]
        outputs.append([out.detach(), *gradients])
    for whole, split in zip(*outputs, strict=True):
        torch.testing.assert_close(whole, split, rtol=1e-4, atol=1e-4)


def test_the_fisher_product_passes_through_the_scores() -> None:
    """Against the second derivative of the KL divergence."""
    config, read = scoring(n_layer=1, length_normalization=False), partial(distribution, OFFERED)
    actor, whole = LLMActor(config, 260, OFFERED), LLMActor(config, 260, OFFERED)
    flat, inputs = FlatParameters(actor), actor.encode(first(OFFERS[:2], OFFERED))
    product = fisher_product(flat, inputs, read, 0.0)
    parameters = [p for p in whole.parameters() if p.requires_grad]
    dist_inputs = whole(inputs)
    kl = read(dist_inputs.detach()).kl(read(dist_inputs)).mean()  # type: ignore[arg-type]
    slope = torch.autograd.grad(kl, parameters, create_graph=True)
    vector = torch.randn(len(flat.vector), generator=torch.Generator().manual_seed(0))
    along = torch.cat([part.reshape(-1) for part in slope]) @ vector
    expected = torch.cat([part.reshape(-1) for part in torch.autograd.grad(along, parameters)])
    torch.testing.assert_close(product(vector), expected, rtol=1e-3, atol=1e-5)
    assert expected.abs().max() > 1e-3


def test_no_token_is_made_again_in_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    actor, history = actor_of(scoring(), OFFERED), first(OFFERS, OFFERED)
    with torch.inference_mode():
        inputs = actor.encode(history)
    prompts, actions = inputs[:, :400], inputs[:, 400:].unflatten(1, (MAX_ACTIONS, 16))
    read = load_tokenizer(actor.config).decode
    for (text, names), prompt, own in zip(OFFERS, prompts, actions, strict=True):
        shown = read(prompt[prompt != PADDING])
        assert shown == f"{text}\nActions: {', '.join(names)}\nAction:"
        assert [read(each[each != PADDING]) for each in own[: len(names)]] == [
            f" {name}" for name in names
        ]
        assert (own[len(names) :] == PADDING).all()
    for name in ("_tokenizer", "_prompt_tokens", "_action_tokens"):
        monkeypatch.setattr(actor.writer, name, None)
    assert actor.features(inputs.clone()).shape == (4, 16)
    actor(inputs.clone()).max().backward()


def test_the_hidden_state_is_that_of_the_prompt_alone() -> None:
    """Whatever actions stand behind it."""
    actor = actor_of(scoring(), OFFERED)
    inputs = actor.encode(first(OFFERS, OFFERED))
    without = inputs.clone()
    without[:, 400:] = PADDING
    torch.testing.assert_close(actor.features(inputs), actor.features(without), rtol=0, atol=0)


@pytest.mark.parametrize("finetune", ["head", "lora"])
def test_a_batch_of_texts_is_so_many_single_calls(finetune: str) -> None:
    actor = actor_of(text_config(finetune=finetune, task="Go."), FOUR)
    texts = ["Short.", "A much longer text\nof two lines.", "x"]
    with torch.no_grad():
        together = actor.decide(first(texts))
        alone = torch.cat([actor.decide(first([text])) for text in texts])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
    assert together.std(0)[0] > 1e-5


def test_nothing_to_read_is_a_prompt_all_the_same() -> None:
    assert actor_of(text_config(), FOUR).decide(first([""])).isfinite().all()


def test_a_state_without_actions_has_none_to_choose() -> None:
    """As at the end of an episode, whose value alone is asked for."""
    actor = actor_of(scoring(), OFFERED)
    history = first([("The end.", [])], OFFERED)
    assert actor.features(actor.encode(history)).isfinite().all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"critic": "mlp"}, "critic=mlp reads numbers, .* use critic=hidden_state"),
        ({"critic": "gpt2"}, "critic=gpt2 reads numbers"),
        ({"decimals": 3}, "decimals applies only to observation=numbers"),
        ({"separator": ","}, "separator applies only to observation=numbers"),
        ({"observation": "numbers", "max_prompt_tokens": 9}, "only to observation=text; set that"),
        (
            {"observation": "numbers", "max_prompt_tokens": 512, "chat_template": False},
            "chat_template applies only to observation=text",
        ),
        ({"length_normalization": False}, "applies only to action_scoring=tokens"),
    ],
)
def test_settings_that_contradict_text_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        text_config(**changes)


def test_what_is_too_long_is_refused_and_never_cut() -> None:
    writer = write(scoring(max_prompt_tokens=40, max_action_tokens=10, task="Go."), OFFERED)
    fits = first([("x" * 18, ["a", "b"])], OFFERED)
    assert writer.prompts(fits).shape == (1, 40)
    with pytest.raises(ValueError, match=r"has 41 tokens, more than model.max_prompt_tokens=40"):
        writer.prompts(first([("x" * 19, ["a", "b"])], OFFERED))
    with pytest.raises(ValueError, match=r"11 tokens, more than model.max_action_tokens=10"):
        writer.actions(first([("x", ["a", "go forward"])], OFFERED))


def test_a_head_cannot_choose_among_actions_that_change() -> None:
    with pytest.raises(ValueError, match=r"use model\.action_scoring=tokens"):
        write(text_config(), OFFERED).prompts(first(OFFERS, OFFERED))


def test_a_prompt_must_fit_the_language_model() -> None:
    assert prompt_problems(scoring(max_prompt_tokens=1001), 260, OFFERED) == []
    [problem] = prompt_problems(scoring(max_prompt_tokens=1001, task="A task."), 260, OFFERED)
    assert problem == (
        "a prompt of model.max_prompt_tokens=1001 with its task and an action takes up to 1025 "
        "tokens, and the language model reads 1024; lower model.max_prompt_tokens"
    )
