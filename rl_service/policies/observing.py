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
        own = None
        if self._brings_mask and isinstance(observation, Mapping):
            observation = dict(observation)
            own = observation.pop(ACTION_MASK, None)
            if own is None:
                raise ObservationError(f"{place}.{ACTION_MASK}: it is missing; give the mask")
            own = own if self._uses_masks else None
        if isinstance(self.observed, TextSpec) and isinstance(observation, Mapping):
            text, actions = _text_and_actions(observation, place)
            row = self.observed.flatten_with_actions(text, actions, place)
            own = self._first(len(actions), place)
        else:
            row = self.observed.flatten(observation, place)
        if own is not None and mask is not None:
            raise ObservationError(
                f"{place}: it says which actions are allowed; give no other action_mask"
            )
        return row.reshape(self.row_shape), self.read_mask(mask if own is None else own)

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


def _text_and_actions(given: Mapping[str, Any], place: str) -> tuple[str, list[str]]:
    text, actions = given.get(TEXT), given.get(ACTIONS)
    is_list = isinstance(actions, list) and all(isinstance(each, str) for each in actions)
    if given.keys() == {TEXT, ACTIONS} and isinstance(text, str) and is_list:
        return text, list(actions or ())
    raise ObservationError(
        f"{place}: expected a text, or an object with {TEXT} and {ACTIONS}, a list of texts"
    )
