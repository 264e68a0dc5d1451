"""A prompt's tokens are those of its whole text, for every family of tokenizers."""

from __future__ import annotations

import functools
import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import GPT2Tokenizer, LlamaTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer

from custom_models.configs import LLMPolicyConfig
from custom_models.history import History
from custom_models.language_model import load_tokenizer
from custom_models.llm_policy import build_writer
from custom_models.observation_text import PADDING
from custom_models.spaces import ActionSpec
from tests.support.base_models import gpt2_tokenizer_folder

DISCRETE = ActionSpec.from_space(gym.spaces.Discrete(3))
BOX = ActionSpec.from_space(gym.spaces.Box(-2.0, 2.0, (2,)))
CORPUS = [
    "Keep the pole up. State: 0.12 -3.40 10.00 -> left\n1.05, -0.99 -> right!\nAction: stay here",
    "the lander is above the pad\n-0.10 -> 0.55 -1.20\n0.00 0.01 -10.00\nAction: go!",
]
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False)
DIGITS = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), WORDS])
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@functools.cache
def learnt(split: Any, *special: str) -> dict[str, Any]:
    """A small vocabulary with all bytes; no merge crosses a split."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        show_progress=False,
        special_tokens=["<unk>", "<s>", "</s>", "<|endoftext|>", *special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return {"vocab": model["vocab"], "merges": [tuple(pair) for pair in model["merges"]]}


def sentence_pieces() -> dict[str, Any]:
    """A vocabulary like Llama's: blanks are ▁, digits stand alone, a new line is a byte."""
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\n", "removed"),
            pre_tokenizers.Metaspace(),
            pre_tokenizers.Digits(individual_digits=True),
        ]
    )
    return learnt(split, *(f"<0x{i:02X}>" for i in range(256)))


def smollm2() -> Any:
    tokenizer = GPT2Tokenizer(**learnt(DIGITS))
    tokenizer.backend_tokenizer.pre_tokenizer = DIGITS
    return tokenizer


def llama3() -> Any:
    tokenizer = Tokenizer(models.BPE(**learnt(WORDS)))
    split = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, BYTES])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = TemplateProcessing("<s> $A", "<s> $A $B", [("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


def older_llama() -> Any:
    """As tokenizers of Llama 1 and 2 were saved: the blank is put there by normalisation."""
    tokenizer = LlamaTokenizer(add_bos_token=True, **sentence_pieces())
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = None
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return tokenizer


FAMILIES: dict[str, Any] = {
    "characters": lambda: load_tokenizer(LLMPolicyConfig()),
    "gpt2": lambda: GPT2Tokenizer(**learnt(WORDS)),
    "smollm2": smollm2,
    "qwen": lambda: Qwen2Tokenizer(**learnt(WORDS)),
    "llama": lambda: LlamaTokenizer(add_bos_token=True, **sentence_pieces()),
    "older llama": older_llama,
    "llama 3": llama3,
}
WITH_BOS = {"llama", "older llama", "llama 3"}


@functools.cache
def built(family: str) -> Any:
    return FAMILIES[family]()


def histories(spec: ActionSpec, context_length: int) -> History:
    rng, count = np.random.default_rng(5), 40
    if spec.kind == "discrete":
        actions: Any = rng.integers(0, spec.size, (count, context_length - 1))
    else:
        actions = rng.normal(size=(count, context_length - 1, spec.size)).astype(np.float32)
    obs = rng.normal(scale=5.0, size=(count, context_length, 4)).astype(np.float32)
    return History(obs, actions, np.arange(count) % context_length)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("task", "separator", "decimals"),
    [("", " ", 2), ("Keep the pole up.\n", ", ", 3), ("State: ", " ", 0)],
)
@pytest.mark.parametrize("spec", [DISCRETE, BOX], ids=["discrete", "box"])
def test_the_pieces_of_a_prompt_are_the_tokens_of_its_text(
    family: str, task: str, separator: str, decimals: int, spec: ActionSpec
) -> None:
    tokenizer = built(family)
    config = LLMPolicyConfig(
        task=task,
        separator=separator,
        decimals=decimals,
        context_length=3,
        action_names=("left", "go!", "stay here") if spec is DISCRETE else (),
        action_scoring="tokens" if spec is DISCRETE else "head",
        finetune="full",
    )
    writer = build_writer(config, tokenizer, 4, spec)
    history = histories(spec, 3)
    texts, prompts = writer.texts(history), writer.prompts(history)
    assert writer.max_tokens >= prompts.shape[1]
    rows = [[*writer.task_tokens, *prompt[prompt != PADDING].tolist()] for prompt in prompts]
    assert rows == tokenizer([task + text for text in texts])["input_ids"]
    assert {row[0] == tokenizer.bos_token_id for row in rows} == {family in WITH_BOS}
    if task != "State: " and separator == " ":
        assert writer.reads_pieces_apart(task) == (family not in WITH_BOS)
    for name, more in zip(writer.action_names, writer.action_tokens, strict=False):
        whole = tokenizer([f"{task}{text} {name}" for text in texts])["input_ids"]
        assert [row + more for row in rows] == whole


def test_prompts_of_gpt2_are_as_they_were() -> None:
    """Policies that were trained earlier read the same ids."""
    config = LLMPolicyConfig(
        tokenizer=str(gpt2_tokenizer_folder()), context_length=2, task="Keep the pole up.\n"
    )
    writer = build_writer(config, load_tokenizer(config), 2, BOX)
    obs = np.array([[[0.12, -3.4], [10.0, -0.004]]], np.float32)
    history = History(obs, np.array([[[1.5, -0.25]]], np.float32), np.array([1]))
    assert writer.task_tokens == [15597, 262, 16825, 510, 13, 198]
    first = [15, 13, 1065, 532, 18, 13, 1821]  # 0.12 -3.40
    action = [4613, 352, 13, 1120, 532, 15, 13, 1495, 198]  # -> 1.50 -0.25
    assert writer.prompts(history).tolist() == [
        [*first, *action, 940, 13, 405, 657, 13, 405]  # 10.00 0.00
    ]
    assert writer.max_tokens == 26


def test_a_tokenizer_that_joins_numbers_is_refused() -> None:
    tokenizer = GPT2Tokenizer(**learnt(BYTES))
    tokenizer.backend_tokenizer.pre_tokenizer = BYTES
    with pytest.raises(ValueError, match="the tokenizer joins numbers, separators or actions"):
        build_writer(LLMPolicyConfig(), tokenizer, 4, DISCRETE)


def test_actions_that_a_tokenizer_cannot_tell_apart_are_refused() -> None:
    config = LLMPolicyConfig(action_names=("é", "ü", "b"))
    with pytest.raises(ValueError, match="writes the actions 'é' and 'ü' alike"):
        build_writer(config, load_tokenizer(config), 4, DISCRETE)
