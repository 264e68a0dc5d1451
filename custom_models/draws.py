"""Random actions for rollouts, from random numbers of many steps at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from custom_models.spaces import ActionSpec, FloatArray


class Draws:
    """Draws actions step by step, from random numbers of many steps at once.

    Args:
        action_spec: the actions.
        num_actions: for how many the random numbers are drawn at once, by torch's global generator.
    """

    def __init__(self, action_spec: ActionSpec, num_actions: int) -> None:
        self._spec = action_spec
        width = action_spec.num_dist_inputs if action_spec.is_categorical else action_spec.size
        self._shape = (num_actions, width)
        self._noise = np.empty((0, 0), np.float32)
        self._used = 0

    def __call__(self, dist_inputs: FloatArray) -> npt.NDArray[Any]:
        """Actions (B,) or (B, A) from `dist_inputs` (B, D); B is at most `num_actions`."""
        noise = self._next(len(dist_inputs))
        if self._spec.is_categorical:
            # The largest of the logits plus Gumbel noise, as in Categorical.sample.
            return self._spec.likeliest(dist_inputs + noise)
        size = self._shape[1]
        noise *= np.exp(dist_inputs[:, size:])
        return dist_inputs[:, :size] + noise

    def _next(self, count: int) -> FloatArray:
        """(count, A) random numbers that have not been used."""
        start = self._used
        if start + count > len(self._noise):
            drawn = torch.empty(self._shape)
            if self._spec.is_categorical:
                drawn.exponential_().log_().neg_()
            else:
                drawn.normal_()
            self._noise, start = drawn.numpy(), 0
        self._used = start + count
        return self._noise[start : self._used]
