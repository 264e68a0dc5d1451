"""What a session remembers of its episode: float32 observations and actions, step by step.

It is compressed: a row of text or of choices is mostly zeros.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from custom_models.history import History
from custom_models.spaces import ActionSpec, FloatArray
from rl_service.serving.inputs import episode


def remembered(
    memory: bytes, obs: FloatArray, action_spec: ActionSpec, num_earlier: int
) -> History | None:
    """The history of an observation (O,) after the steps in a session's memory."""
    if num_earlier == 0:
        return None
    step_size = obs.size + math.prod(action_spec.row_shape)
    steps = np.frombuffer(_plain(memory), np.float32).reshape(-1, step_size)
    return episode(steps[:, : obs.size], steps[:, obs.size :], obs, action_spec, num_earlier)


def longer(memory: bytes, obs: FloatArray, actions: npt.NDArray[Any], num_earlier: int) -> bytes:
    """A session's memory after one more step: at most the last K-1 observations and actions."""
    if num_earlier == 0:
        return b""
    step = obs.tobytes() + actions.astype(np.float32).tobytes()
    return zlib.compress((_plain(memory) + step)[-num_earlier * len(step) :], 1)


def _plain(memory: bytes) -> bytes:
    return zlib.decompress(memory) if memory else b""
