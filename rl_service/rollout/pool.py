"""EnvPool, which steps all environments of a worker in one call (arXiv 2206.10558).

What differs from gymnasium: an env is seeded once, when the pool is made, and its episodes are
then one long stream. An episode can thus not be repeated from its seed, so a resumed run starts new
ones.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from custom_models.spaces import ActionSpec, FloatArray
from custom_models.text import one_line
from rl_service.common.errors import EnvError
from rl_service.config.presets import resolve_env_id
from rl_service.config.settings import EnvSettings
from rl_service.rollout.env_failures import FailedEpisode
from rl_service.rollout.episodes import episode_seed
from rl_service.rollout.filters import hide
from rl_service.rollout.stepping import Array, Stepped, Stepping, find_not_finite

_NO_LIMIT = 10**9
"""Env steps. A pool reports an episode that ends at its own limit as truncated, whatever else ended
it, so the limit is kept here."""

Stream = tuple[int, int, int]
"""Seed of the run, index of the worker, index of the env: what an env's episodes come from."""


class PoolStepping(Stepping):
    """Steps a pool, made with the first reset.

    Args:
        env: settings of the environment.
        observation_space: of the same environment in gymnasium, flat.
        action_space: likewise.
        streams: of each env.
    """

    def __init__(
        self,
        env: EnvSettings,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        streams: Sequence[Stream],
    ) -> None:
        spec = ActionSpec.from_space(action_space)
        super().__init__(len(streams), spec, env.max_failed_episodes)
        self._env, self._streams = env, streams
        self._size = observation_space.shape[0]  # type: ignore[index]  # flat
        self._limit = time_limit(env)
        self._pool: Any = None
        self._first_episode = 0
        """Of the pool; earlier ones are of another pool, before a resume."""
        self._episodes = np.full(self.num_envs, -1)  # that run, counted from 0
        self._t = np.zeros(self.num_envs, np.int64)
        self._alive_at = time.monotonic()

    @property
    def alive_at(self) -> float:
        return self._alive_at

    def _seed(self, env_index: int) -> int:
        """Of an env's whole stream of episodes; EnvPool takes 31 bits."""
        return episode_seed(*self._streams[env_index], self._first_episode) >> 1

    def step(self, envs: Any, actions: Array) -> Stepped:
        self._alive_at = time.monotonic()
        numbers = np.arange(self.num_envs, dtype=np.int32)[envs]
        env_actions = self.action_spec.to_env(actions)
        obs, rewards, terminated, _, _ = self._pool.step(env_actions, numbers)
        self._t[numbers] += 1
        ended = terminated | (self._t[numbers] >= self._limit)
        errors: dict[int, str] = {}
        observed = self._observe(obs, rewards)
        find_not_finite(observed, rewards, errors)
        return Stepped(observed, rewards, terminated, ended, errors)

    def reset(self, envs: Iterable[int]) -> Array:
        numbers = np.fromiter(envs, np.int32)
        if self._pool is None:
            self._pool = make_pool(self._env, [self._seed(e) for e in range(self.num_envs)])
        observed = np.empty((len(numbers), self._size), np.float32)
        left = np.arange(len(numbers))
        while len(left):
            self._alive_at = time.monotonic()
            self._episodes[numbers[left]] += 1
            self._t[numbers[left]] = 0
            rewards = np.zeros(len(left), np.float32)
            errors: dict[int, str] = {}
            seen = self._observe(self._pool.reset(numbers[left])[0], rewards)
            if seen.shape[1] != self._size:
                raise EnvError(
                    f"EnvPool's {self._env.id} has {seen.shape[1]} numbers in an observation, "
                    f"gymnasium's {self._size}; leave env.backend out"
                )
            observed[left] = seen
            find_not_finite(observed[left], rewards, errors)
            left = left[list(errors)]
            for k, error in zip(left, errors.values(), strict=True):
                self.fail(int(numbers[k]), error)
        return observed

    def _observe(self, obs: Array, rewards: Array) -> FloatArray:
        """Observations (B, O) as the nets read them."""
        flat = obs.reshape(len(obs), -1).astype(np.float32, copy=False)
        seen = hide(flat, self._env.hide)
        return np.column_stack([seen, rewards]) if self._env.observe_reward else seen

    def fail(self, env_index: int, error: str) -> None:
        worker_index = self._streams[env_index][1]
        episode = int(self._episodes[env_index])
        what = f"{error} (episode {episode} of a pool's env)"
        step = int(self._t[env_index])
        self._record(FailedEpisode(worker_index, env_index, self._seed(env_index), step, what))

    def state(self) -> list[dict[str, Any]]:
        return [{"episode": self._first_episode + int(n)} for n in self._episodes]

    def restore(self, states: Sequence[dict[str, Any]]) -> list[int]:
        self.skip_episodes(max(state["episode"] for state in states))
        return list(range(self.num_envs))

    def skip_episodes(self, last: int) -> None:
        self._pool, self._first_episode = None, last + 1
        self._episodes[:] = -1


def time_limit(env: EnvSettings) -> int:
    """Env steps after which an episode is truncated."""
    if env.max_episode_steps is not None:
        return env.max_episode_steps
    spec = gym.registry.get(resolve_env_id(env.id)[0])  # none of a user's own, which no pool has
    limit = None if spec is None else spec.max_episode_steps
    return _NO_LIMIT if limit is None else limit


def make_pool(env: EnvSettings, seeds: list[int]) -> Any:
    """A pool of one env for each seed, stepped by one thread.

    Raises:
        EnvError: if EnvPool is not installed, or cannot make the environment.
    """
    env_id, _ = resolve_env_id(env.id)
    try:
        import envpool  # a second to import, and only some runs need it
    except ImportError as error:
        raise EnvError(
            f"env.backend=envpool needs EnvPool, which cannot be imported ({one_line(error)}); "
            f"run pip install 'rl-service[envpool]', or leave env.backend out"
        ) from error
    if env_id not in envpool.list_all_envs():
        raise EnvError(
            f"EnvPool has no environment {env_id}; leave env.backend out, and gymnasium steps it"
        )
    with warnings.catch_warnings():
        # Of the spaces, which lose precision as float32; gymnasium's are used instead.
        warnings.filterwarnings("ignore", message=".*precision lowered by casting")
        try:
            pool: Any = envpool.make(
                env_id,
                env_type="gymnasium",
                num_envs=len(seeds),
                num_threads=1,
                seed=seeds,
                max_episode_steps=_NO_LIMIT,
                **env.kwargs,
            )
        except Exception as error:  # unknown arguments, or bad values of known ones
            raise EnvError(
                f"EnvPool cannot make {env_id}: {one_line(error)}; check env.kwargs, or leave "
                f"env.backend out"
            ) from error
        pool.observation_space, pool.action_space  # noqa: B018  # made, and warned of, at first use
    return pool


def try_pool(env: EnvSettings, space: gym.spaces.Box, action_space: gym.Space[Any]) -> None:
    """Makes a pool and takes one step in it, as training will do.

    Args:
        env: with the backend `envpool`.
        space: flat observations of the same environment in gymnasium.
        action_space: likewise.

    Raises:
        EnvError: if EnvPool is not installed, has no such environment, or one that differs.
    """
    pool = PoolStepping(env, space, action_space, [(0, 0, 0)])
    pool.reset([0])
    spec = pool.action_spec
    pool.step(slice(None), np.zeros((1, *spec.row_shape), spec.row_dtype))
