"""A prompt's tokens are those of its whole text, for every family of tokenizers."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from transformers import GPT2Tokenizer

from custom_models.configs import LLMPolicyConfig
from custom_models.history import History
from custom_models.language_model import load_tokenizer
from custom_models.observation_text import PADDING
from custom_models.spaces import ActionSpec
from custom_models.text_prompts import build_writer
from tests.support.base_models import gpt2_tokenizer_folder
from tests.support.tokenizers import BYTES, FAMILIES, WITH_BOS, built, learnt

DISCRETE = ActionSpec.from_space(gym.spaces.Discrete(3))
BOX = ActionSpec.from_space(gym.spaces.Box(-2.0, 2.0, (2,)))


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
