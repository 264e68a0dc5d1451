"""Episodes of one environment that a checkpoint can bring back."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np

from custom_models.spaces import ACTION_MASK
from rl_service.rollout.env_failures import FailedEpisode


def episode_seed(seed: int, worker_index: int, env_index: int, episode: int) -> int:
    """Seed of the n-th episode of one env of one worker; distinct streams never collide."""
    sequence = np.random.SeedSequence([seed, worker_index, env_index, episode])
    return int(sequence.generate_state(1)[0])


class SeededEpisodes(gym.Wrapper[Any, Any, Any, Any]):
    """Seeds every reset from (run seed, worker, env, episode number) and records the actions.

    A checkpoint then needs no copy of the simulator: the episode number and the actions since
    its reset bring a deterministic env back to where it was. An env that has raised may be
    broken: it is made again for the next episode.

    Args:
        make: makes the environment.
        seed: of the run.
        worker_index: of the rollout worker, 0 for the learner's own process.
        env_index: of this env among the worker's.
    """

    def __init__(
        self,
        make: Callable[[], gym.Env[Any, Any]],
        seed: int,
        worker_index: int,
        env_index: int,
    ) -> None:
        super().__init__(make())
        self._make = make
        self._broken = False
        self._stream = (seed, worker_index, env_index)
        self._episode = -1
        self._seed = 0
        self._actions: list[Any] = []
        self._obs: Any = None
        self.action_mask: Any = None
        """Which actions the environment allows next, as it says so; None: all."""
        self.alive_at = time.monotonic()
        """When the last reset or step began."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts the next episode. A reset with an explicit seed is not counted."""
        self.alive_at = time.monotonic()
        self._actions = []
        if seed is None:
            self._episode += 1
            seed = episode_seed(*self._stream, self._episode)
        self._seed = seed
        if self._broken:
            self._make_anew()
        try:
            self._obs, info = self.env.reset(seed=seed, options=options)
        except Exception:
            self._broken = True
            raise
        self.action_mask = info.get(ACTION_MASK)
        return self._obs, info

    def _make_anew(self) -> None:
        with suppress(Exception):  # what is broken may not close either
            self.env.close()
        self.env = self._make()
        self._broken = False

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.alive_at = time.monotonic()
        self._actions.append(action)
        try:
            result = self.env.step(action)
        except Exception:
            self._broken = True
            raise
        self._obs = result[0]
        self.action_mask = result[4].get(ACTION_MASK)
        return result

    def failure(self, error: str) -> FailedEpisode:
        """The record of the running episode, which has failed in its last step or its reset."""
        _, worker_index, env_index = self._stream
        return FailedEpisode(worker_index, env_index, self._seed, len(self._actions), error)

    def state(self) -> dict[str, Any]:
        """Episode number, the actions since its reset, and the observation they led to."""
        return {
            "episode": self._episode,
            "actions": np.asarray(self._actions),
            "obs": np.asarray(self._obs),
        }

    def skip_episodes(self, last: int) -> None:
        """Continues with the episode after a number of episodes."""
        self._episode = last

    def replay(self, state: dict[str, Any]) -> bool:
        """Replays the recorded episode up to the recorded step.

        Returns:
            Whether that led to the recorded observation; false if the env is not deterministic,
            which one that raises now is not either.
        """
        self._episode = int(state["episode"]) - 1
        discrete = state["actions"].ndim == 1 and np.issubdtype(state["actions"].dtype, np.integer)
        try:
            self.reset()
            for action in state["actions"]:
                self.step(int(action) if discrete else action)
        except Exception:
            return False
        return bool(np.allclose(self._obs, state["obs"], rtol=1e-5, atol=1e-6))
