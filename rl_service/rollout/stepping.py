"""Resets and steps environments; a failure in one of them is returned, not raised."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from custom_models.spaces import ActionSpec
from rl_service.common.errors import TrainingFailedError
from rl_service.rollout.env_failures import (
    FailedEpisode,
    exception_text,
    not_finite,
    too_many_failures,
)
from rl_service.rollout.episodes import SeededEpisodes

logger = logging.getLogger(__name__)

Array = npt.NDArray[Any]


class Stepped(NamedTuple):
    """The results of one action in each of B envs."""

    obs: Array
    """(B, O)"""
    rewards: npt.NDArray[np.float32]
    """(B,)"""
    terminated: npt.NDArray[np.bool_]
    """(B,)"""
    ended: npt.NDArray[np.bool_]
    """(B,) terminated or truncated."""
    errors: dict[int, str]
    """Errors by row; the other fields mean nothing for these rows."""

    def rows(self, rows: Array) -> Stepped:
        """Some of the rows, none of which failed."""
        obs, rewards, terminated, ended, _ = self
        return Stepped(obs[rows], rewards[rows], terminated[rows], ended[rows], {})


class Stepping(ABC):
    """Steps the E environments of a worker, and records episodes that failed.

    Args:
        num_envs: E.
        action_spec: maps policy actions to env actions.
        max_failures: episodes that may fail between two calls of `forgive`.
    """

    def __init__(self, num_envs: int, action_spec: ActionSpec, max_failures: int) -> None:
        self.num_envs = num_envs
        self.action_spec = action_spec
        self.masks: npt.NDArray[np.bool_] | None = None
        """(E, D) which actions each env allows next, one entry for each logit; None: all do."""
        self._max_failures = max_failures
        self._num_failures = 0
        self._failures: list[FailedEpisode] = []

    @abstractmethod
    def step(self, envs: Any, actions: Array) -> Stepped:
        """Takes the policy's actions (B, ...) in some envs: (B,) numbers, or a full slice."""

    @abstractmethod
    def reset(self, envs: Iterable[int]) -> Array:
        """The first observations (B, O) of new episodes in some envs.

        If a reset fails, the episode counts as failed and the next one is tried.

        Raises:
            TrainingFailedError: if more than `max_failures` episodes have failed.
        """

    @abstractmethod
    def fail(self, env_index: int, error: str) -> None:
        """Records that the running episode of an env has failed.

        Raises:
            TrainingFailedError: if that is one too many.
        """

    @property
    @abstractmethod
    def alive_at(self) -> float:
        """When the last reset or step of any env began, in monotonic seconds."""

    @abstractmethod
    def state(self) -> list[dict[str, Any]]:
        """Of each env, what `restore` needs; `episode` is the number of its running episode."""

    @abstractmethod
    def restore(self, states: Sequence[dict[str, Any]]) -> list[int]:
        """Continues the episodes of states; returns the envs in which that is not possible."""

    @abstractmethod
    def skip_episodes(self, last: int) -> None:
        """Continues, in all envs, with the episode after that number."""

    def forgive(self) -> None:
        """Counts failures from 0 again."""
        self._num_failures = 0

    def pop_failures(self) -> list[FailedEpisode]:
        """Episodes that failed since the last call."""
        failures, self._failures = self._failures, []
        return failures

    def _record(self, failure: FailedEpisode) -> None:
        logger.warning("an episode failed in its environment: %s", failure)
        self._failures.append(failure)
        self._num_failures += 1
        if self._num_failures > self._max_failures:
            raise TrainingFailedError(
                too_many_failures(self._num_failures, self._max_failures, failure)
            )


class GymStepping(Stepping):
    """Steps environments of gymnasium, one after the other.

    Args:
        envs: the environments.
        max_failures: as for `Stepping`.
    """

    def __init__(self, envs: Sequence[SeededEpisodes], max_failures: int) -> None:
        action_spec = ActionSpec.from_space(envs[0].action_space)
        super().__init__(len(envs), action_spec, max_failures)
        self._envs = envs
        self._shape = envs[0].observation_space.shape or ()

    def step(self, envs: Any, actions: Array) -> Stepped:
        env_actions = self.action_spec.to_env(actions)
        if self.action_spec.kind == "discrete":
            env_actions = env_actions.tolist()
        observed: list[Any] = []
        rewards = np.zeros(len(actions), np.float32)
        terminated, truncated = np.zeros((2, len(actions)), np.bool_)
        errors: dict[int, str] = {}
        numbers = range(self.num_envs)[envs] if isinstance(envs, slice) else envs
        for k, e in enumerate(numbers):
            env = self._envs[e]
            try:
                obs, rewards[k], terminated[k], truncated[k], _ = env.step(env_actions[k])
                uses_masks = env.action_mask is not None or self.masks is not None
                if uses_masks and not (terminated[k] or truncated[k]):  # none is due after an end
                    self._note_mask(e, env.action_mask)
            except Exception as error:  # an environment may raise anything
                errors[k] = exception_text(error)
                obs = np.zeros(self._shape, np.float32)
            observed.append(obs)
        stacked = self._stack(observed, errors)
        find_not_finite(stacked, rewards, errors)
        return Stepped(stacked, rewards, terminated, terminated | truncated, errors)

    def _stack(self, observed: list[Any], errors: dict[int, str]) -> Array:
        """Observations (B, O); those of another shape are added to the errors."""
        if all(getattr(obs, "shape", None) == self._shape for obs in observed):
            return np.array(observed)
        for k, obs in enumerate(observed):
            if error := self._wrong_shape(obs):
                errors[k] = error
                observed[k] = np.zeros(self._shape, np.float32)
        return np.stack(observed)

    def _wrong_shape(self, obs: Any) -> str | None:
        try:
            shape = np.shape(obs)
        except ValueError as error:  # rows of several lengths
            return exception_text(error)
        if shape == self._shape:
            return None
        return f"observation has the shape {shape} instead of {self._shape}"

    def _note_mask(self, env_index: int, mask: Any) -> None:
        """Keeps what an env allows next.

        Raises:
            ValueError: if the mask does not fit the actions, or allows none.
        """
        if mask is None and self.masks is None:
            return
        if self.masks is None:
            self.masks = np.ones((self.num_envs, self.action_spec.num_dist_inputs), np.bool_)
        self.masks[env_index] = True if mask is None else self.action_spec.read_mask(mask)

    def reset(self, envs: Iterable[int]) -> Array:
        return np.stack([self._reset(e) for e in envs])

    def _reset(self, env_index: int) -> Array:
        env = self._envs[env_index]
        while True:
            try:
                obs = np.asarray(env.reset()[0])
                error = self._wrong_shape(obs) or not_finite(obs)
                self._note_mask(env_index, env.action_mask)
            except Exception as raised:  # an environment may raise anything
                error = exception_text(raised)
            if error is None:
                return obs
            self._record(env.failure(error))

    def fail(self, env_index: int, error: str) -> None:
        self._record(self._envs[env_index].failure(error))

    @property
    def alive_at(self) -> float:
        return max(env.alive_at for env in self._envs)

    def state(self) -> list[dict[str, Any]]:
        return [env.state() for env in self._envs]

    def restore(self, states: Sequence[dict[str, Any]]) -> list[int]:
        """Replays each episode up to its recorded step, which an erratic env does not reach."""
        replayed = [env.replay(state) for env, state in zip(self._envs, states, strict=True)]
        for e, is_there in enumerate(replayed):
            if is_there:
                self._note_mask(e, self._envs[e].action_mask)
        return [e for e, is_there in enumerate(replayed) if not is_there]

    def skip_episodes(self, last: int) -> None:
        for env in self._envs:
            env.skip_episodes(last)


def find_not_finite(obs: Array, rewards: npt.NDArray[np.float32], errors: dict[int, str]) -> None:
    """Adds to the errors the rows (B, O), (B,) that are not finite."""
    # A sum of squares costs a third of a look at each number, and is finite only if they are.
    if math.isfinite(np.vdot(obs, obs)) and math.isfinite(np.vdot(rewards, rewards)):
        return
    for k, reward in enumerate(rewards):
        if k not in errors and (error := not_finite(obs[k], float(reward))):
            errors[k] = error
