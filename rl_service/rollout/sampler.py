"""Steps a vector of environments and writes whole columns; knows no Ray.

One policy call per vector step. Columns are preallocated as (T, E, ...) and laid out as rows of
fragments (see `fragments`) once at the end.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from ray.rllib.policy.sample_batch import SampleBatch

from custom_models.history import History, RunningHistory
from custom_models.spaces import ActionSpec
from rl_service.envs.episodes import SeededEpisodes
from rl_service.rollout.filters import ReturnScaler, RunningFilter
from rl_service.rollout.fragments import ACTOR_INPUTS, LOSS_MASK, Columns

Array = npt.NDArray[Any]

_EPISODES_PER_ENV = 1 << 20
"""Width of the range of episode ids that one env of one worker may use."""


class Acted(NamedTuple):
    """What a policy says about one vector of observations."""

    actions: Array
    """(E,) integers or (E, A) floats in normalised units."""
    action_logp: Array
    """(E,) nats."""
    dist_inputs: Array
    """(E, num_dist_inputs)."""
    inputs: Array | None
    """(E, I) what they were computed from, if that is not the observation itself."""


class Episode(NamedTuple):
    """A finished episode."""

    length: int
    """Env steps."""
    episode_return: float
    """Undiscounted sum of unscaled rewards."""


class VectorSampler:
    """E environments, stepped together, cut into fragments.

    Args:
        envs: the environments; each resets by itself when its episode ends.
        act: policy: the last observations of E environments to actions.
        action_spec: maps policy actions to env actions.
        num_context_steps: K-1 earlier steps that a fragment brings along.
        acting_context_length: observations that the policy acts on, the current one included.
        obs_filter: normalises observations, None leaves them.
        return_scaler: scales rewards for learning, None leaves them.
        worker_index: keeps episode ids of different workers apart.
    """

    def __init__(
        self,
        envs: Sequence[SeededEpisodes],
        act: Callable[[History], Acted],
        action_spec: ActionSpec,
        *,
        num_context_steps: int,
        acting_context_length: int,
        obs_filter: RunningFilter | None,
        return_scaler: ReturnScaler | None,
        worker_index: int,
    ) -> None:
        self.envs = list(envs)
        self.return_scaler = return_scaler
        self._act = act
        self._action_spec = action_spec
        self._num_context_steps = num_context_steps
        self._filter = obs_filter
        self._episode_ids = (
            np.arange(len(envs), dtype=np.int64) + worker_index * len(envs)
        ) * _EPISODES_PER_ENV
        self._t = np.zeros(len(envs), np.int64)
        self._returns = np.zeros(len(envs), np.float64)
        self._episodes: list[Episode] = []
        self._context: list[Columns] = [{} for _ in envs]
        self._history = RunningHistory(len(envs), acting_context_length, action_spec)
        self._obs: npt.NDArray[np.float32] | None = None
        """(E, O) observations to act on, normalised; None before the first reset."""

    def pop_episodes(self) -> list[Episode]:
        """Episodes that have ended since the last call."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def sample(self, num_steps: int) -> Columns:
        """Takes `num_steps` vector steps.

        Args:
            num_steps: T; the result holds T * E step rows beside context and final rows.

        Returns:
            Columns of rows, env after env.
        """
        if self._obs is None:
            self._obs = self._normalise(np.stack([env.reset()[0] for env in self.envs]))
        steps = self._allocate(num_steps)
        finals: list[list[tuple[int, Array]]] = [[] for _ in self.envs]
        for i in range(num_steps):
            self._vector_step(i, steps, finals)
        return self._lay_out(steps, finals)

    def _allocate(self, num_steps: int) -> Columns:
        assert self._obs is not None
        shape = (num_steps, len(self.envs))
        spec = self._action_spec
        discrete = spec.kind == "discrete"
        return {
            SampleBatch.OBS: np.empty((*shape, self._obs.shape[1]), np.float32),
            SampleBatch.ACTIONS: (
                np.empty(shape, np.int64) if discrete else np.empty((*shape, spec.size), np.float32)
            ),
            SampleBatch.REWARDS: np.empty(shape, np.float32),
            SampleBatch.TERMINATEDS: np.zeros(shape, np.bool_),
            SampleBatch.T: np.empty(shape, np.int64),
            SampleBatch.EPS_ID: np.empty(shape, np.int64),
            SampleBatch.ACTION_LOGP: np.empty(shape, np.float32),
            SampleBatch.ACTION_DIST_INPUTS: np.empty((*shape, spec.num_dist_inputs), np.float32),
            LOSS_MASK: np.ones(shape, np.bool_),
        }

    def _vector_step(self, i: int, steps: Columns, finals: list[list[tuple[int, Array]]]) -> None:
        assert self._obs is not None
        acted = self._act(self._history.observed(self._obs))
        self._history.acted(acted.actions)
        steps[SampleBatch.OBS][i] = self._obs
        steps[SampleBatch.ACTIONS][i] = acted.actions
        steps[SampleBatch.ACTION_LOGP][i] = acted.action_logp
        steps[SampleBatch.ACTION_DIST_INPUTS][i] = acted.dist_inputs
        if acted.inputs is not None:
            if ACTOR_INPUTS not in steps:
                shape = (*steps[LOSS_MASK].shape, acted.inputs.shape[1])
                steps[ACTOR_INPUTS] = np.empty(shape, acted.inputs.dtype)
            steps[ACTOR_INPUTS][i] = acted.inputs
        steps[SampleBatch.T][i] = self._t
        steps[SampleBatch.EPS_ID][i] = self._episode_ids
        env_actions = self._action_spec.to_env(acted.actions)
        if self._action_spec.kind == "discrete":
            env_actions = env_actions.tolist()
        raw, rewards = [], steps[SampleBatch.REWARDS][i]
        done = np.zeros(len(self.envs), np.bool_)
        for e, env in enumerate(self.envs):
            obs, reward, terminated, truncated, _ = env.step(env_actions[e])
            raw.append(obs)
            rewards[e] = reward
            done[e] = terminated or truncated
            steps[SampleBatch.TERMINATEDS][i, e] = terminated
        self._returns += rewards
        self._t += 1
        if self.return_scaler is not None:
            rewards[:] = self.return_scaler(rewards, done)
        self._obs = self._normalise(np.stack(raw))
        if done.any():
            self._start_episodes(i, np.flatnonzero(done), steps, finals)

    def _start_episodes(
        self, i: int, ended: Array, steps: Columns, finals: list[list[tuple[int, Array]]]
    ) -> None:
        """Books the ended episodes, keeps the observations that end at a time limit, resets."""
        assert self._obs is not None
        for e in ended:
            self._episodes.append(Episode(int(self._t[e]), float(self._returns[e])))
            if not steps[SampleBatch.TERMINATEDS][i, e]:
                finals[e].append((i, self._obs[e].copy()))
        first = np.stack([self.envs[e].reset()[0] for e in ended])
        self._obs[ended] = self._normalise(first)
        self._history.forget(ended)
        self._t[ended] = 0
        self._returns[ended] = 0.0
        self._episode_ids[ended] += 1

    def _normalise(self, obs: Array) -> npt.NDArray[np.float32]:
        if self._filter is None:
            return obs.astype(np.float32, copy=False)
        return self._filter(obs)

    def _lay_out(self, steps: Columns, finals: list[list[tuple[int, Array]]]) -> Columns:
        """Rows of all fragments, env after env: context, then steps and final rows in order."""
        num_steps, num_envs = steps[LOSS_MASK].shape
        closing = self._closing_rows(num_steps, finals)
        closes = np.zeros((num_steps, num_envs), np.int64)
        after, owners = np.array([(i, e) for i, e, _ in closing], np.int64).reshape(-1, 2).T
        closes[after, owners] = 1
        num_context = np.array([len(c[SampleBatch.T]) if c else 0 for c in self._context])
        ends = np.cumsum(num_context + num_steps + closes.sum(0))  # of fragments, in rows
        starts = np.concatenate([[0], ends[:-1]])
        rows = starts + num_context + np.arange(num_steps)[:, None]  # (T, E) of the steps
        rows += closes.cumsum(0) - closes
        out: Columns = {}
        for name, column in steps.items():
            out[name] = np.zeros((int(ends[-1]), *column.shape[2:]), column.dtype)
            out[name][rows] = column
        for start, context in zip(starts, self._context, strict=True):
            for name, column in context.items():
                out[name][start : start + len(column)] = column
        if closing:
            final_rows = rows[after, owners] + 1
            out[SampleBatch.OBS][final_rows] = np.stack([obs for _, _, obs in closing])
            out[SampleBatch.T][final_rows] = steps[SampleBatch.T][after, owners] + 1
            out[SampleBatch.EPS_ID][final_rows] = steps[SampleBatch.EPS_ID][after, owners]
        if self._num_context_steps:
            self._context = [self._next_context(e, out, end) for e, end in enumerate(ends)]
        return out

    def _closing_rows(
        self, num_steps: int, finals: list[list[tuple[int, Array]]]
    ) -> list[tuple[int, int, Array]]:
        """(step before, env, observation) of each final row, the cuts' included."""
        assert self._obs is not None
        inside = [(i, e, obs) for e, final in enumerate(finals) for i, obs in final]
        # Where the last step ended its episode there is nothing to bootstrap at the cut.
        going_on = np.flatnonzero(self._t)
        return inside + [(num_steps - 1, int(e), self._obs[e]) for e in going_on]

    def _next_context(self, e: int, columns: Columns, end: int) -> Columns:
        """The last K-1 steps of the episode that goes on, for the next fragment.

        Args:
            e: env.
            columns: rows of all fragments.
            end: row after this env's last one.
        """
        num_rows = min(self._num_context_steps, int(self._t[e]))
        if num_rows == 0:
            return {}
        names = (SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.T, SampleBatch.EPS_ID)
        last = end - 1  # the cut's final row
        return {name: columns[name][last - num_rows : last].copy() for name in names}

    def state(self) -> dict[str, Any]:
        """All that is needed to go on from here in another process."""
        state = {
            "envs": [env.state() for env in self.envs],
            "obs": self._obs,
            "episode_ids": self._episode_ids,
            "t": self._t,
            "returns": self._returns,
            "context": self._context,
            "history": self._history.state(),
            "discounted": None if self.return_scaler is None else self.return_scaler.discounted,
        }
        return copy.deepcopy(state)  # a snapshot: sampling writes into these arrays

    def restore(self, state: dict[str, Any]) -> list[int]:
        """Goes on from a state; replays each env's episode up to the recorded step.

        Returns:
            Envs that are not deterministic and did not come back to where they were; those
            start a new episode.
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
        return [e for e in range(len(self.envs)) if not self._replay(e, state["envs"][e])]

    def _replay(self, e: int, env_state: dict[str, Any]) -> bool:
        assert self._obs is not None
        if self.envs[e].replay(env_state):
            return True
        first = np.asarray(self.envs[e].reset()[0])[None]
        self._obs[e] = self._normalise(first)[0]
        self._t[e], self._returns[e], self._context[e] = 0, 0.0, {}
        self._history.forget([e])
        self._episode_ids[e] += 1
        return False
