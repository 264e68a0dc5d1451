"""Steps a vector of environments and writes whole columns; knows no Ray.

There is one policy call per vector step. If an episode fails in its environment, its rows are
removed from the current fragments; what it showed before stays in the running statistics.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from ray.rllib.policy.sample_batch import SampleBatch

from custom_models.history import History, RunningHistory
from custom_models.spaces import FloatArray
from rl_service.rollout.env_failures import FailedEpisode
from rl_service.rollout.filters import ReturnScaler, RunningFilter
from rl_service.rollout.fragments import Columns, Place, Steps, next_context
from rl_service.rollout.stepping import Array, Stepped, Stepping

_EPISODES_PER_ENV = 1 << 20
"""Width of the range of episode ids that one env of one worker may use."""


class Acted(NamedTuple):
    """A policy's answer to one vector of observations."""

    actions: Array
    """(E, *row_shape) in the policy's units."""
    dist_inputs: Array
    """(E, num_dist_inputs), masked where an action was not allowed."""
    inputs: Array | None
    """(E, I) what they were computed from, if not from the observation itself."""


Decide = Callable[[History], tuple[FloatArray, Array | None]]
"""From the histories of B envs, in order, to `dist_inputs` and inputs, as in `Acted`."""

Policy = Callable[[History, npt.NDArray[np.bool_] | None], Acted]
"""From the histories of B envs, in order, to their actions; and from which are allowed, (B, D) for
each logit, if not all are."""


class Episode(NamedTuple):
    """A finished episode."""

    length: int
    """Env steps."""
    episode_return: float
    """Undiscounted sum of unscaled rewards."""


class VectorSampler:
    """Steps E environments together and cuts the steps into fragments.

    Args:
        stepping: the environments.
        open_policy: called for each call of `sample`, with the number of actions that it takes;
            gives the policy.
        num_context_steps: K-1, the earlier steps that come with a fragment.
        acting_context_length: observations that the policy acts on, the current one included.
        obs_filter: normalises observations; None leaves them as they are.
        return_scaler: scales rewards for learning; None leaves them as they are.
        worker_index: keeps episode ids of different workers apart.
    """

    def __init__(
        self,
        stepping: Stepping,
        open_policy: Callable[[int], Policy],
        *,
        num_context_steps: int,
        acting_context_length: int,
        obs_filter: RunningFilter | None,
        return_scaler: ReturnScaler | None,
        worker_index: int,
    ) -> None:
        self.stepping = stepping
        self.return_scaler = return_scaler
        num_envs, action_spec = stepping.num_envs, stepping.action_spec
        self._open_policy = open_policy
        self._action_spec = action_spec
        self._num_context_steps = num_context_steps
        self._filter = obs_filter
        self._episode_ids = (
            np.arange(num_envs, dtype=np.int64) + worker_index * num_envs
        ) * _EPISODES_PER_ENV
        self._t = np.zeros(num_envs, np.int64)
        self._returns = np.zeros(num_envs, np.float64)
        self._episodes: list[Episode] = []
        self._context: list[Columns] = [{} for _ in range(num_envs)]
        self._history = RunningHistory(num_envs, acting_context_length, action_spec)
        self._obs: npt.NDArray[np.float32] | None = None
        """(E, O) observations to act on, normalised; None before the first reset."""
        self._astray: list[int] = []
        """Envs that `restore` could not bring back to their recorded step."""

    def pop_episodes(self) -> list[Episode]:
        """Episodes that have ended since the last call."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def pop_failures(self) -> list[FailedEpisode]:
        """Episodes that failed in their environment since the last call."""
        return self.stepping.pop_failures()

    def sample(self, num_steps: int) -> Columns:
        """Takes `num_steps` steps of every env.

        An episode that fails in its environment is dropped: its steps are taken back, and its
        env catches up with a new one.

        Args:
            num_steps: T; the result holds T * E step rows beside context and final rows.

        Returns:
            Columns of rows, env after env.

        Raises:
            TrainingFailedError: if more than `max_failures` episodes fail.
        """
        self.stepping.forgive()
        policy = self._open_policy(num_steps * self.stepping.num_envs)
        if self._obs is None:
            self._obs = self._normalise(self.stepping.reset(range(self.stepping.num_envs)))
        if self._astray:
            self._begin_episodes(np.array(self._astray))
            self._astray = []
        steps = Steps(num_steps, self.stepping.num_envs, self._obs.shape[1], self._action_spec)
        while (place := steps.next_place()) is not None:
            self._step(steps, place, policy)
        steps.compute_log_probs(self._action_spec)
        # If the last step ended its episode, there is nothing to bootstrap at the cut.
        columns, ends = steps.lay_out(self._context, np.flatnonzero(self._t), self._obs)
        if self._num_context_steps:
            lengths = np.minimum(self._t, self._num_context_steps)
            self._context = [
                next_context(columns, end, n) for end, n in zip(ends, lengths, strict=True)
            ]
        return columns

    def _step(self, steps: Steps, place: Place, policy: Policy) -> None:
        """Takes one step in the envs at a place."""
        assert self._obs is not None
        envs = place[1]
        masks = self.stepping.masks
        history = self._history.observed(self._obs[envs], envs)
        acted = policy(history, None if masks is None else masks[envs])
        self._history.acted(acted.actions, envs)
        steps.write(
            place,
            {
                SampleBatch.OBS: self._obs[envs],
                SampleBatch.ACTIONS: acted.actions,
                SampleBatch.ACTION_DIST_INPUTS: acted.dist_inputs,
                SampleBatch.T: self._t[envs],
                SampleBatch.EPS_ID: self._episode_ids[envs],
            },
        )
        if acted.inputs is not None:
            steps.write_inputs(place, acted.inputs)
        stepped = self.stepping.step(envs, acted.actions)
        if not stepped.errors:
            self._book(steps, place, stepped)
            return
        numbers = np.arange(self.stepping.num_envs)[envs]
        self._drop(steps, {int(numbers[k]): error for k, error in stepped.errors.items()})
        kept = np.delete(np.arange(len(numbers)), list(stepped.errors))
        if len(kept):
            self._book(steps, steps.place_of(numbers[kept]), stepped.rows(kept))

    def _book(self, steps: Steps, place: Place, stepped: Stepped) -> None:
        """Records a step that worked, and starts new episodes in envs whose episode ended."""
        assert self._obs is not None
        envs, rewards = place[1], stepped.rewards
        self._returns[envs] += rewards
        self._t[envs] += 1
        if self.return_scaler is not None:
            rewards = self.return_scaler(rewards, envs)
        steps.write(
            place, {SampleBatch.REWARDS: rewards, SampleBatch.TERMINATEDS: stepped.terminated}
        )
        self._obs[envs] = self._normalise(stepped.obs)
        if stepped.ended.any():
            numbers = np.arange(self.stepping.num_envs)[envs]
            ended = numbers[stepped.ended]
            self._episodes += [Episode(int(self._t[e]), float(self._returns[e])) for e in ended]
            limited = numbers[stepped.ended & ~stepped.terminated]
            steps.end_at_limit(limited, self._obs[limited])
            self._begin_episodes(ended)
        steps.advance(place)

    def _drop(self, steps: Steps, errors: Mapping[int, str]) -> None:
        """Removes the running episodes of envs that failed, and starts new ones in them."""
        for e, error in errors.items():
            self.stepping.fail(e, error)
        envs = np.array(list(errors))
        nothing_left = steps.take_back(envs, self._t[envs])
        for e in envs[nothing_left]:
            self._context[e] = {}
        self._begin_episodes(envs)

    def _begin_episodes(self, envs: Array) -> None:
        assert self._obs is not None
        self._obs[envs] = self._normalise(self.stepping.reset(envs))
        self._history.forget(envs)
        self._t[envs] = 0
        self._returns[envs] = 0.0
        self._episode_ids[envs] += 1
        if self.return_scaler is not None:
            self.return_scaler.forget(envs)

    def _normalise(self, obs: Array) -> npt.NDArray[np.float32]:
        if self._filter is None:
            return obs.astype(np.float32, copy=False)
        return self._filter(obs)

    def state(self) -> dict[str, Any]:
        """Everything that another process needs to continue from here."""
        state = {
            "envs": self.stepping.state(),
            "obs": self._obs,
            "episode_ids": self._episode_ids,
            "t": self._t,
            "returns": self._returns,
            "context": self._context,
            "history": self._history.state(),
            "discounted": None if self.return_scaler is None else self.return_scaler.discounted,
            "astray": self._astray,
        }
        return copy.deepcopy(state)  # a snapshot: sampling writes into these arrays

    def restore(self, state: dict[str, Any]) -> list[int]:
        """Continues from a state.

        Returns:
            Envs that did not come back to where they were; those start a new episode with the next
            sample, when the filter's statistics are there.
        """
        if state["obs"] is None:
            return []
        self._obs = np.array(state["obs"])
        self._episode_ids = np.array(state["episode_ids"])
        self._t, self._returns = np.array(state["t"]), np.array(state["returns"])
        self._context = [dict(context) for context in state["context"]]
        self._history.restore(state["history"])
        if self.return_scaler is not None and state["discounted"] is not None:
            self.return_scaler.discounted = np.array(state["discounted"])
        astray = {*self.stepping.restore(state["envs"]), *state.get("astray", ())}
        for e in astray:
            self._context[e] = {}
        self._astray = sorted(astray)
        return list(self._astray)
