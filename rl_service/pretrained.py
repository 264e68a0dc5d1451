"""Checks a folder of pretrained GPT-2 weights without loading it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from custom_models.configs import GPT2CriticConfig, ModelConfig
from rl_service.config.text import one_line

WEIGHTS_FILE, CONFIG_FILE = "model.safetensors", "config.json"


def check_pretrained(model: ModelConfig) -> list[str]:
    """The reasons for which `model.pretrained` cannot be used, one line each."""
    if not isinstance(model, GPT2CriticConfig) or model.pretrained is None:
        return []
    folder = Path(model.pretrained).expanduser()
    try:
        config = _read_config(folder)
        _check_weights(folder / WEIGHTS_FILE)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return [
            f"model.pretrained={model.pretrained} holds no usable GPT-2: {reason}; give a folder "
            f"with {CONFIG_FILE} and {WEIGHTS_FILE} in Hugging Face format"
        ]
    positions = int(config["n_positions"])
    if 2 * model.context_length > positions:
        return [
            f"model.context_length={model.context_length} needs {2 * model.context_length} "
            f"positions (a state and an action token per step), and the GPT-2 in "
            f"{model.pretrained} has {positions}; use at most {positions // 2}"
        ]
    return []


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise ValueError(f"there is no {CONFIG_FILE}")
    config = json.loads(path.read_text(encoding="utf-8"))
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind != "gpt2":
        raise ValueError(f"its {CONFIG_FILE} is for model_type {kind}, not gpt2")
    sizes = ("n_layer", "n_head", "n_embd", "n_positions")
    missing = [key for key in sizes if not isinstance(config.get(key), int)]
    if missing:
        raise ValueError(f"its {CONFIG_FILE} does not give {', '.join(missing)}")
    return config  # type: ignore[no-any-return]


def _check_weights(path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"there is no {WEIGHTS_FILE}")
    try:
        with safe_open(path, framework="np"):  # reads the header alone and compares the size
            return
    except SafetensorError as error:
        raise ValueError(f"{WEIGHTS_FILE} is truncated or foreign ({one_line(error)})") from error
