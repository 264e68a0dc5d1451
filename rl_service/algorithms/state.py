"""The file of a training state: tensors and plain values, so that loading it runs no code."""

from __future__ import annotations

import io
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from custom_models.base_models import find_by_fingerprint, find_model, fingerprint
from custom_models.model_config import ModelConfig
from rl_service.common.errors import CheckpointError
from rl_service.config.settings import Settings

STATE_FILE = "training_state.pt"
STATE_FORMAT = 6


def write_state(folder: Path, state: dict[str, Any]) -> None:
    """Writes `state` (nested dicts and lists of tensors, arrays, plain values) to `folder`.

    Raises:
        OSError: if the disk is full or cannot be written.
    """
    # Given a path, torch writes the file itself and raises no OSError if the disk fails.
    with (folder / STATE_FILE).open("wb") as file:
        try:
            torch.save(_to_tensors({"format": STATE_FORMAT, **state}), file)
        except RuntimeError as error:  # of the archive's end, after that of the disk
            raise error.__context__ or error from None


def to_bytes(state: dict[str, Any]) -> bytes:
    """A state to send: views into one vector take its room once."""
    buffer = io.BytesIO()
    torch.save(_to_tensors(state), buffer)
    return buffer.getvalue()


def from_bytes(data: bytes) -> dict[str, Any]:
    """What `to_bytes` was given, with tensors for arrays, on the CPU."""
    state: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return state


def read_state(folder: Path, settings: Settings) -> dict[str, Any]:
    """Reads and checks a training state.

    Raises:
        CheckpointError: if it is missing, damaged or of another kind of run.
    """
    path, state = folder / STATE_FILE, _read(folder)
    if state.get("base_model") != base_model_sha256(settings.model):
        raise CheckpointError(
            f"{path} was written with another base model than {settings.model.base_model} is now; "
            f"put that one back, or give its folder with --base-model"
        )
    for key, want in (
        ("model", settings.model.name),
        ("algorithm", settings.algorithm.name),
        ("env", settings.env.id),
        ("observation_filter", settings.env.observation_filter),
        ("normalize_returns", settings.env.normalize_returns),
    ):
        if state[key] != want:
            raise CheckpointError(
                f"{path} is of {key} {state[key]}, the settings say {want}; "
                f"resume with the settings that the run was started with"
            )
    learner = state.pop("learner")
    return {**_to_arrays(state), "learner": learner}


def _read(folder: Path) -> dict[str, Any]:
    path = folder / STATE_FILE
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no {STATE_FILE}; name a run folder of this service")
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"{path} cannot be read: it is truncated or of another program "
            f"({type(error).__name__}); resume from an older checkpoint"
        ) from error
    if not isinstance(state, dict) or state.get("format") != STATE_FORMAT:
        raise CheckpointError(f"{path} is not a training state of format {STATE_FORMAT}")
    return state


def locate_base_model(settings: Settings, checkpoint: Path, given: str | None) -> Settings:
    """The settings of a run with the folder where its base model lies now.

    Args:
        settings: of the run; returned unchanged if they name the right model.
        checkpoint: folder of a training state, which holds the model's SHA-256.
        given: a folder to look at before the model store.

    Raises:
        CheckpointError: if the model is not there, or the checkpoint is damaged.
    """
    model = settings.model
    if model.base_model is None:
        return settings
    sha256 = _read(checkpoint).get("base_model")
    with suppress(FileNotFoundError):
        if given is None and base_model_sha256(model) == sha256:
            return settings
    name = os.path.basename(model.base_model)
    try:
        folder = find_by_fingerprint(str(sha256), name, given)
    except FileNotFoundError as error:
        raise CheckpointError(f"the run needs its base model {name}: {error}") from error
    return settings.model_copy(update={"model": model.with_base_model(str(folder.absolute()))})


def base_model_sha256(model: ModelConfig) -> str | None:
    """Fingerprint of the folder that a model starts from, None if there is none."""
    return None if model.base_model is None else fingerprint(find_model(model.base_model))


def _to_tensors(value: Any) -> Any:
    """Arrays to tensors, so that the file loads without unpickling any code."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy()) if value.dtype.kind in "fiub" else value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _to_tensors(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_tensors(item) for item in value]
    return value


def _to_arrays(value: Any) -> Any:
    """Tensors back to arrays."""
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if isinstance(value, dict):
        return {key: _to_arrays(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_to_arrays(item) for item in value]
    return value
