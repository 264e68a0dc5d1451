"""Causal language models of transformers: loaded, shortened, and prepared for what is to learn."""

from __future__ import annotations

import string
import threading
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    PreTrainedTokenizerFast,
)

from custom_models.base_models import CONFIG_FILE, find_model, fingerprint
from custom_models.configs import LLMPolicyConfig

_CHARACTERS = string.digits + string.ascii_letters + string.punctuation + " \n"
_NUM_POSITIONS = 1024
"""Longest prompt, in tokens, of a model that is built here."""
_RANDOM_WEIGHTS_SEED = 0
_TOKENIZER_FILES = "tokenizer.json", "tokenizer.model", "vocab.json"
_LOADING = threading.Lock()
"""While transformers builds a model it patches torch for the whole process, and random weights
come from the process's seed: a second thread at the same time would get arbitrary weights."""


def load_tokenizer(config: LLMPolicyConfig) -> Any:
    """The tokenizer of a model's prompts.

    Raises:
        FileNotFoundError: if there is no such folder or fetched model, or no tokenizer in it.
        ValueError: if the tokenizer cannot be read.
    """
    if config.base_model is None:
        return _character_tokenizer()
    folder = find_model(config.base_model)
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise FileNotFoundError(
            f"{folder} has no tokenizer ({' or '.join(_TOKENIZER_FILES)}); save one there with "
            f"save_pretrained of transformers"
        )
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # errors of damaged files are not documented
        raise ValueError(
            f"the tokenizer in {folder} cannot be read ({type(error).__name__}); save it again"
        ) from error


def _character_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {character: i for i, character in enumerate(_CHARACTERS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, unk_token="?"
    )


def load_language_model(config: LLMPolicyConfig, vocabulary_size: int) -> Any:
    """The model itself, in evaluation mode, with gradients for what learns.

    A pretrained model of which nothing learns is loaded once for the whole process. Threads wait
    for each other.

    Raises:
        FileNotFoundError: if there is no such folder or fetched model.
    """
    with _LOADING:
        return _load_prepared(config, vocabulary_size)


def _load_prepared(config: LLMPolicyConfig, vocabulary_size: int) -> Any:
    if config.finetune == "head":
        if config.pretrained is None or config.random_weights:
            return _load(config, vocabulary_size).requires_grad_(False).eval()
        folder = find_model(config.pretrained)
        wanted = folder, fingerprint(folder), config.num_layers
        model = _frozen(*wanted)
        if model.device.type != "cpu":  # a learner has moved it to its GPU
            _frozen.cache_clear()
            model = _frozen(*wanted)
        return model
    model = _load(config, vocabulary_size)
    if config.finetune == "lora":
        return _with_lora(model, config).eval()
    if config.action_scoring == "head":  # then nothing is computed from the output's own weights
        output, tied = model.get_output_embeddings().weight, model.get_input_embeddings().weight
        output.requires_grad_(output is tied)
    return model.eval()


@lru_cache(maxsize=1)
def _frozen(folder: Path, sha256: str, num_layers: int | None) -> Any:
    """Loads a folder; `sha256` distinguishes its contents at different times."""
    config = LLMPolicyConfig(pretrained=str(folder), num_layers=num_layers)
    return _load(config, 0).requires_grad_(False).eval()


def _load(config: LLMPolicyConfig, vocabulary_size: int) -> Any:
    # Only plain attention has a forward derivative, as TRPO's Fisher products ask.
    attention = {"attn_implementation": "sdpa" if config.finetune == "head" else "eager"}
    if config.pretrained is None:
        built = GPT2Config(
            vocab_size=vocabulary_size,
            n_positions=_NUM_POSITIONS,
            n_layer=config.n_layer,
            n_head=config.n_head,
            n_embd=config.n_embd,
            bos_token_id=None,
            eos_token_id=None,
        )
        return _with_random_weights(built, attention)
    model_config = _read_config(config.pretrained)
    if config.num_layers is not None:
        _shorten(model_config, config.num_layers)
    if config.random_weights:
        return _with_random_weights(model_config, attention)
    return AutoModelForCausalLM.from_pretrained(
        find_model(config.pretrained),
        config=model_config,
        local_files_only=True,
        use_safetensors=True,  # no pickle, and nothing that the fingerprint leaves out
        dtype=torch.float32,
        **attention,
    )


def _shorten(model_config: Any, num_layers: int) -> None:
    """Reduces a configuration of transformers to the first layers."""
    model_config.num_hidden_layers = num_layers
    kinds = getattr(model_config, "layer_types", None)
    if kinds:
        model_config.layer_types = kinds[:num_layers]


def _with_random_weights(model_config: Any, attention: dict[str, str]) -> Any:
    """The same weights in every process: rollout workers build their own, frozen or not."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_RANDOM_WEIGHTS_SEED)
        return AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            model_config, dtype=torch.float32, **attention
        )


def _with_lora(model: Any, config: LLMPolicyConfig) -> Any:
    from peft import LoraConfig, get_peft_model  # takes seconds to import
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as KNOWN

    kind = model.config.model_type
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # peft asks transformers for something by its old name.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        torch.manual_seed(_RANDOM_WEIGHTS_SEED)
        return get_peft_model(
            model,
            LoraConfig(
                r=config.lora_rank,
                lora_alpha=config.lora_alpha,
                target_modules=None if kind in KNOWN else "all-linear",
                fan_in_fan_out=kind == "gpt2",  # its layers hold their weights transposed
            ),
        )


def num_positions(config: LLMPolicyConfig) -> int | None:
    """Longest prompt that a model reads, in tokens; None if it does not say.

    Raises:
        FileNotFoundError: if there is no such folder or fetched model.
    """
    if config.pretrained is None:
        return _NUM_POSITIONS
    return getattr(_read_config(config.pretrained), "max_position_embeddings", None)


def num_layers(config: LLMPolicyConfig) -> int:
    """Number of layers of a model.

    Raises:
        FileNotFoundError: if there is no such folder or fetched model.
    """
    if config.pretrained is None:
        return config.n_layer
    return int(_read_config(config.pretrained).num_hidden_layers)


def hidden_size(config: LLMPolicyConfig) -> int:
    """Entries of a token's hidden state.

    Raises:
        FileNotFoundError: if there is no such folder or fetched model.
    """
    if config.pretrained is None:
        return config.n_embd
    text = _read_config(config.pretrained).get_text_config()  # itself, if it has no other parts
    # An OPT gives hidden states as wide as its embeddings.
    return int(getattr(text, "word_embed_proj_dim", text.hidden_size))


def _read_config(name: str) -> Any:
    """The configuration of a folder's model.

    Raises:
        FileNotFoundError: if there is no such folder or fetched model.
        ValueError: if the file is damaged, or the model is not a causal language model.
    """
    folder = find_model(name)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # errors of damaged files are not documented
        raise ValueError(f"{folder / CONFIG_FILE} cannot be read: {error}") from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(
            f"{folder} holds a {config.model_type} model, which is not a causal language model"
        )
    return config
