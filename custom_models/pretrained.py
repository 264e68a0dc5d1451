"""Checks pretrained weights, and the prompts of a language model, without loading a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from custom_models.base_models import find_model
from custom_models.configs import LLMPolicyConfig
from custom_models.model_config import GPT2CriticSettings
from custom_models.spaces import ActionSpec
from custom_models.text import one_line

WEIGHTS_FILE, CONFIG_FILE = "model.safetensors", "config.json"
_SIZES = ("n_layer", "n_head", "n_embd", "n_positions")
_HEAD_MODEL_PREFIX = "transformer."  # a GPT-2 that was saved with its language-model head
_DEFAULT_VOCABULARY = 50257  # Hugging Face's, where the config does not say


def gpt2_problems(critic: GPT2CriticSettings, where: str) -> list[str]:
    """The reasons for which a critic's `pretrained` cannot be used, one line each.

    Args:
        critic: its settings.
        where: the settings' name, for the messages.
    """
    if critic.pretrained is None:
        return []
    try:
        folder = find_model(critic.pretrained)
        config = _read_config(folder)
        _check_weights(folder / WEIGHTS_FILE, config)
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        return [
            f"{where}.pretrained={critic.pretrained} holds no usable GPT-2: {reason}; give a "
            f"folder with {CONFIG_FILE} and {WEIGHTS_FILE} in Hugging Face format"
        ]
    positions, head_size = int(config["n_positions"]), config["n_embd"] // config["n_head"]
    if critic.time == "relative" and head_size % 2:
        return [
            f"{where}.time=relative turns pairs of a head's numbers, and the GPT-2 in "
            f"{critic.pretrained} has {head_size} per head; use time=none or time=absolute"
        ]
    if critic.num_tokens > positions:
        return [
            f"{where}.context_length={critic.context_length} needs {critic.num_tokens} positions "
            f"({critic.tokens_per_step} for each step), and the GPT-2 in {critic.pretrained} has "
            f"{positions}; use at most {positions // critic.tokens_per_step}"
        ]
    return []


def prompt_problems(
    model: LLMPolicyConfig, observation_size: int, action_spec: ActionSpec
) -> list[str]:
    """The reasons for which a language model cannot read an environment's observations.

    Args:
        model: the language model's settings.
        observation_size: O.
        action_spec: the environment's actions.
    """
    # transformers takes seconds to import
    from custom_models.language_model import load_tokenizer, num_layers, num_positions
    from custom_models.text_prompts import build_writer

    try:
        positions, layers = num_positions(model), num_layers(model)
        if model.pretrained is not None and not model.random_weights:
            _check_language_model(find_model(model.pretrained))
        writer = build_writer(model, load_tokenizer(model), observation_size, action_spec)
    except (OSError, ValueError) as error:
        return [f"model llm_policy: {one_line(error)}"]
    needed = len(writer.task_tokens) + writer.max_tokens + writer.max_action_tokens
    problems = []
    if positions is not None and needed > positions:
        kind = (
            f"model.max_prompt_tokens={model.max_prompt_tokens} with its task and an action"
            if model.reads_text
            else f"model.context_length={model.context_length} observations with "
            f"{observation_size} numbers each"
        )
        remedy = "max_prompt_tokens" if model.reads_text else "context_length or model.decimals"
        problems.append(
            f"a prompt of {kind} takes up to {needed} tokens, and the language model reads "
            f"{positions}; lower model.{remedy}"
        )
    if model.num_layers is not None and model.num_layers > layers:
        problems.append(
            f"model.num_layers={model.num_layers}, and {model.pretrained} has {layers} layers; "
            f"use at most {layers}"
        )
    return problems


def _check_language_model(folder: Path) -> None:
    """Reads the headers of the weights, which say whether the files are whole."""
    index = folder / f"{WEIGHTS_FILE}.index.json"
    names = {WEIGHTS_FILE}
    if index.is_file() and not (folder / WEIGHTS_FILE).is_file():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    for name in sorted(names):
        if not (folder / name).is_file():
            raise ValueError(
                f"{folder} has no {name}; weights in another format (pytorch_model.bin) are not "
                f"read: save the model with save_pretrained of transformers"
            )
        _read_header(folder / name)


def _read_header(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights in a file, by name."""
    try:
        with safe_open(path, framework="np") as file:
            names = file.keys()
            return {name: tuple(file.get_slice(name).get_shape()) for name in names}
    except SafetensorError as error:
        raise ValueError(f"{path.name} is truncated or foreign ({one_line(error)})") from error


def _read_config(folder: Path) -> dict[str, Any]:
    config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind != "gpt2":
        raise ValueError(f"its {CONFIG_FILE} is for model_type {kind}, not gpt2")
    missing = [key for key in _SIZES if not _is_size(config.get(key))]
    if missing:
        raise ValueError(f"its {CONFIG_FILE} does not give {', '.join(missing)}")
    if config["n_embd"] % config["n_head"]:
        raise ValueError(f"its {CONFIG_FILE} gives an n_embd that n_head does not divide")
    return config  # type: ignore[no-any-return]


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _check_weights(path: Path, config: dict[str, Any]) -> None:
    """Compares the names and shapes in the file's header, all that is read, with the config."""
    if not path.is_file():
        raise ValueError(f"there is no {WEIGHTS_FILE}")
    shapes = _read_header(path)
    found = {name.removeprefix(_HEAD_MODEL_PREFIX): shape for name, shape in shapes.items()}
    for name, shape in _trunk_shapes(config).items():
        if name not in found:
            raise ValueError(f"{WEIGHTS_FILE} has no {name}, so it is of another model")
        _check_shape(name, found[name], shape)
    for name, shape in _embedding_shapes(config).items():
        _check_shape(name, found.get(name, shape), shape)


def _check_shape(name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if found != expected:
        raise ValueError(
            f"{name} in {WEIGHTS_FILE} has shape {found}, and its {CONFIG_FILE} says {expected}"
        )


def _trunk_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """What the critic takes from the file."""
    width = config["n_embd"]
    inner = config.get("n_inner") or 4 * width
    block = {
        "ln_1.weight": (width,),
        "ln_1.bias": (width,),
        "attn.c_attn.weight": (width, 3 * width),
        "attn.c_attn.bias": (3 * width,),
        "attn.c_proj.weight": (width, width),
        "attn.c_proj.bias": (width,),
        "ln_2.weight": (width,),
        "ln_2.bias": (width,),
        "mlp.c_fc.weight": (width, inner),
        "mlp.c_fc.bias": (inner,),
        "mlp.c_proj.weight": (inner, width),
        "mlp.c_proj.bias": (width,),
    }
    blocks = {f"h.{i}.{name}": block[name] for i in range(config["n_layer"]) for name in block}
    return {**blocks, "ln_f.weight": (width,), "ln_f.bias": (width,)}


def _embedding_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """What the critic leaves out, but the loader compares."""
    width = config["n_embd"]
    vocabulary = config.get("vocab_size", _DEFAULT_VOCABULARY)
    return {"wpe.weight": (config["n_positions"], width), "wte.weight": (vocabulary, width)}
