"""Language models: what is known of one before it is loaded, and loading."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3Config,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
)

from custom_models.configs import LLMPolicyConfig
from custom_models.language_model import hidden_size, load_language_model

SIZES: dict[str, Any] = {"num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 60}
GEMMA = {**SIZES, "hidden_size": 16, "intermediate_size": 8, "num_key_value_heads": 1}


@pytest.mark.parametrize(
    "config",
    [
        OPTConfig(**SIZES, hidden_size=32, word_embed_proj_dim=16, ffn_dim=8),
        Gemma3Config(text_config={**GEMMA, "head_dim": 8}, vision_config={"num_hidden_layers": 1}),
    ],
    ids=["narrow embeddings", "several parts"],
)
def test_the_size_of_hidden_states_is_known_without_the_model(config: Any, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    hidden = model.base_model(input_ids=torch.zeros(1, 2, dtype=torch.long)).last_hidden_state
    assert hidden_size(LLMPolicyConfig(pretrained=str(tmp_path))) == hidden.shape[-1] == 16


def test_threads_that_load_at_once_get_the_same_weights(tmp_path: Path) -> None:
    """transformers builds models with functions of torch changed for the whole process."""
    tied = LlamaConfig(
        **SIZES,
        hidden_size=16,
        intermediate_size=8,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(tied).save_pretrained(tmp_path)
    config = LLMPolicyConfig(pretrained=str(tmp_path), finetune="lora", action_scoring="tokens")

    def weights(_: int) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = load_language_model(config, 0).state_dict()
        return found

    first = weights(0)
    with ThreadPoolExecutor(4) as pool:
        for loaded in pool.map(weights, range(16)):
            assert all(torch.equal(loaded[name], first[name]) for name in first)
