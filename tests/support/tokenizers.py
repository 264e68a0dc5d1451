"""Small tokenizers of every family that language models have."""

from __future__ import annotations

import functools
import json
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import GPT2Tokenizer, LlamaTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer

from custom_models.configs import LLMPolicyConfig
from custom_models.language_model import load_tokenizer

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
