"""Sampling alone: one rollout worker in this process, one and two in their own, and bare envs."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import gymnasium as gym
import ray

from rl_service.algorithms.base import OnPolicyAlgorithm
from rl_service.algorithms.build import build_algorithm
from rl_service.config.settings import EnvSettings
from rl_service.rollout.envs import make_env
from rl_service.runtime.ray_session import ray_session
from tests.benchmarks.subjects.settings import benchmark_settings


class Samplers:
    """The same env everywhere, `num_envs` in each place."""

    def __init__(self, env_id: str, num_envs: int) -> None:
        self.num_envs = num_envs
        self._stack = ExitStack()
        self._bare = BareEnvs(env_id, num_envs)
        local, remote = (
            benchmark_settings(
                {
                    "env": {"id": env_id},
                    "model": {"name": "mlp"},
                    "resources": {"num_env_runners": n, "num_envs_per_env_runner": num_envs},
                }
            )
            for n in (0, 2)
        )
        self._stack.enter_context(ray_session(local.resources))
        self._local, self._remote = build_algorithm(local), build_algorithm(remote)
        for algorithm in (self._local, self._remote):
            self._stack.callback(algorithm.stop)
            algorithm.start_workers()

    def close(self) -> None:
        self._stack.close()

    def env_steps_per_s(self, what: str, vector_steps: int) -> float:
        """Env steps a second of all places together.

        Args:
            what: `bare`, `worker` (in this process), `one` or `two` (remote, with the way home).
            vector_steps: of each place.
        """
        places = 2 if what == "two" else 1
        work = self._work(what, vector_steps)
        started = time.perf_counter()
        work()
        return places * vector_steps * self.num_envs / (time.perf_counter() - started)

    def _work(self, what: str, vector_steps: int) -> Callable[[], Any]:
        if what == "bare":
            actions = self._bare.random_actions(vector_steps)
            return lambda: self._bare.step_all(actions)
        if what == "worker":
            return lambda: self._local.env_runner.sample(vector_steps)
        number = 1 if what == "one" else 2
        return lambda: _sample_remotely(self._remote, number, vector_steps)


def _sample_remotely(algorithm: OnPolicyAlgorithm, number: int, vector_steps: int) -> None:
    assert algorithm.fleet is not None
    workers = list(algorithm.fleet.ready.values())[:number]
    ray.get([each.actor.sample_and_report.remote(vector_steps) for each in workers])


class BareEnvs:
    """What no sampler can beat: the env's own `step` in a loop, actions chosen before."""

    def __init__(self, env_id: str, num_envs: int) -> None:
        self.envs: list[gym.Env[Any, Any]] = [
            make_env(EnvSettings(id=env_id)) for _ in range(num_envs)
        ]
        for seed, env in enumerate(self.envs):
            env.reset(seed=seed)
            env.action_space.seed(seed)

    def random_actions(self, vector_steps: int) -> list[list[Any]]:
        """One action per step and env; plain integers for a discrete space, the cheapest there."""
        discrete = isinstance(self.envs[0].action_space, gym.spaces.Discrete)
        return [
            [int(a) if discrete else a for a in (env.action_space.sample() for env in self.envs)]
            for _ in range(vector_steps)
        ]

    def step_all(self, actions: list[list[Any]]) -> None:
        for row in actions:
            for env, action in zip(self.envs, row, strict=True):
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
