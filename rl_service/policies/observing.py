"""Observations as an environment or a client gives them: rows that a policy reads, and masks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from custom_models.spaces import ACTION_MASK, ActionSpec, FloatArray
from custom_models.text import brief
from rl_service.common.errors import ObservationError
from rl_service.policies.spaces import Space, TextSpec, observed_part

TEXT, ACTIONS = "text", "admissible_actions"
"""Keys of a text that comes with the actions to choose among."""
Mask = npt.NDArray[np.bool_]


class ObservationReader:
    """Reads observations of one policy.

    Args:
        space: of the environment's observations.
        action_spec: the actions of the policy.
        uses_masks: whether a mask in a Dict observation is used, as in training.
    """

    def __init__(self, space: Space, action_spec: ActionSpec, *, uses_masks: bool) -> None:
        self.space, self.action_spec = space, action_spec
        self.observed = observed_part(space)
        self.row_shape = self.observed.row_shape
        self.words = brief(space.words)
        """What an observation is, for people."""
        self._brings_mask = self.observed != space
        self._uses_masks = uses_masks

    def read(
        self, observation: Any, mask: Any = None, place: str = "observation"
    ) -> tuple[FloatArray, Mask | None]:
        """A row of the shape `row_shape`, and which logits are allowed (D,), if not all.

        Args:
            observation: as the environment gives it; a text may also be
                `{"text": ..., "admissible_actions": [...]}`.
            mask: as the environment gives it in `info["action_mask"]`: an entry for each logit.
            place: what a message calls the observation.

        Raises:
            ObservationError: if the observation is none of the space, or the mask does not fit the
                actions or allows none.
        """
        if self._brings_mask and isinstance(observation, Mapping):
            observation = dict(observation)
            own = observation.pop(ACTION_MASK, None)
            if own is None:
                raise ObservationError(f"{place}.{ACTION_MASK}: it is missing; give the mask")
            mask = own if self._uses_masks else mask  # as in training, it goes before the info's
        if isinstance(self.observed, TextSpec):
            return self._read_text(self.observed, observation, mask, place)
        row = self.observed.flatten(observation, place)
        return row.reshape(self.row_shape), self.read_mask(mask)

    def _read_text(
        self, space: TextSpec, observation: Any, mask: Any, place: str
    ) -> tuple[FloatArray, Mask | None]:
        if not isinstance(observation, Mapping) and not space.brings_actions:
            return space.flatten(observation, place), self.read_mask(mask)
        text, actions = _text_and_actions(observation, place)
        if mask is not None:
            raise ObservationError(
                f"{place}: it says which actions are allowed; give no other action_mask"
            )
        row = space.flatten_with_actions(text, actions, place)
        return row, self._first(len(actions), place)

    def read_mask(self, mask: Any) -> Mask | None:
        """Which logits are allowed (D,); None if all are.

        Raises:
            ObservationError: as `read`.
        """
        if mask is None:
            return None
        try:
            return self.action_spec.read_mask(mask)
        except ValueError as error:
            raise ObservationError(
                f"{error}; expected {self.action_spec.num_dist_inputs} zeros and ones, with a 1 "
                f"among those of each choice"
            ) from error

    def _first(self, num_actions: int, place: str) -> Mask:
        """The mask of a text that brings this many actions."""
        size = self.action_spec.size
        if self.action_spec.kind != "discrete" or not 0 < num_actions <= size:
            raise ObservationError(
                f"{place}.{ACTIONS}: there are {num_actions}; this policy chooses among 1 to {size}"
            )
        return np.arange(size) < num_actions


def _text_and_actions(given: Any, place: str) -> tuple[str, list[str]]:
    if isinstance(given, Mapping) and given.keys() == {TEXT, ACTIONS}:
        text, actions = given[TEXT], given[ACTIONS]
        is_list = isinstance(actions, list) and all(isinstance(each, str) for each in actions)
        if isinstance(text, str) and is_list:
            return text, actions
    raise ObservationError(
        f"{place}: expected a text, or an object with {TEXT} and {ACTIONS}, a list of texts"
    )
