"""What an actor can read when it acts: the current observation and the steps before it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from custom_models.spaces import ActionSpec, FloatArray


class History(NamedTuple):
    """The last K observations of B episodes and the actions between them, oldest first."""

    obs: FloatArray
    """(B, K, O); the last one is to be acted on."""
    actions: npt.NDArray[Any]
    """(B, K-1, *row_shape) of an `ActionSpec`: the action at each observation except the last."""
    num_steps: npt.NDArray[np.int64]
    """(B,) how many of the K-1 earlier steps are of the same episode; these are the last ones."""

    @property
    def missing(self) -> npt.NDArray[np.bool_]:
        """(B, K-1) whether an earlier step is not of the same episode; its entries may be any."""
        earlier = self.obs.shape[1] - 1
        gone: npt.NDArray[np.bool_] = np.arange(earlier) < earlier - self.num_steps[:, None]
        return gone

    def rows(self, rows: slice) -> History:
        """The histories of some of the episodes."""
        return History(self.obs[rows], self.actions[rows], self.num_steps[rows])

    @classmethod
    def first_steps(cls, obs: FloatArray, context_length: int, action_spec: ActionSpec) -> History:
        """Histories that begin with the given observations (B, O)."""
        running = RunningHistory(len(obs), context_length, action_spec)
        return running.observed(obs)


_ALL = slice(None)


class RunningHistory:
    """The histories of E environments, step by step.

    Args:
        num_envs: E.
        context_length: K; 1 keeps nothing but the current observation.
        action_spec: the actions.
    """

    def __init__(self, num_envs: int, context_length: int, action_spec: ActionSpec) -> None:
        self._earlier = context_length - 1
        shape = (num_envs, self._earlier, *action_spec.row_shape)
        self._actions = np.zeros(shape, action_spec.row_dtype)
        self._num_steps = np.zeros(num_envs, np.int64)
        self._obs: FloatArray | None = None

    def observed(self, obs: FloatArray, envs: Any = _ALL) -> History:
        """The histories that end in observations (B, O) of these envs; by default all.

        They may be views: use them before the next call.
        """
        if self._earlier == 0:
            return History(obs[:, None], self._actions[envs], self._num_steps[envs])
        if self._obs is None:
            shape = (len(self._num_steps), self._earlier + 1, obs.shape[1])
            self._obs = np.zeros(shape, np.float32)
        self._obs[envs, -1] = obs
        return History(self._obs[envs], self._actions[envs], self._num_steps[envs])

    def acted(self, actions: npt.NDArray[Any], envs: Any = _ALL) -> None:
        """Actions (B,) or (B, A) were taken in these envs at the observations last seen."""
        if self._earlier == 0:
            return
        assert self._obs is not None
        self._obs[envs, :-1] = self._obs[envs, 1:]
        self._actions[envs, :-1] = self._actions[envs, 1:]
        self._actions[envs, -1] = actions
        self._num_steps[envs] = np.minimum(self._num_steps[envs] + 1, self._earlier)

    def forget(self, envs: Any) -> None:
        """New episodes begin in these envs."""
        self._num_steps[envs] = 0

    def state(self) -> dict[str, Any]:
        """The whole state, as arrays."""
        return {"obs": self._obs, "actions": self._actions, "num_steps": self._num_steps}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a state."""
        self._obs = None if state["obs"] is None else np.array(state["obs"])
        self._actions, self._num_steps = np.array(state["actions"]), np.array(state["num_steps"])
