"""Plays whole episodes with a policy and returns its scores.

The protocol of all scores: episode i starts from seed + i, actions are the mode of the
distribution, and returns are those of the environment itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from custom_models.history import RunningHistory
from custom_models.spaces import ActionSpec
from custom_models.text import brief
from rl_service.common.errors import EnvError, SettingsError
from rl_service.config.settings import MAX_EVALUATED_STEPS, EnvSettings
from rl_service.policies.bundle import BundledPolicy
from rl_service.policies.runner import PolicyRunner
from rl_service.policies.simple_spaces import BoxSpec
from rl_service.policies.spaces import observed_part, space_spec
from rl_service.rollout.env_failures import exception_text, failure_text, not_finite
from rl_service.rollout.envs import make_env, raw_observation_space
from rl_service.training.video import AddFrame, make_drawable_env, mp4_video

NUM_PARALLEL_ENVS, NUM_PARALLEL_ENVS_ON_GPU = 16, 64
"""Episodes that run side by side; enough that a forward pass costs little per step."""
_FIRST_REPORT_S = 10.0
"""Each later one comes after twice the time."""


@dataclass(frozen=True)
class EvaluationResult:
    """Undiscounted returns and lengths of N episodes, in the order of their seeds."""

    returns: npt.NDArray[np.float64]
    """(N,)"""
    lengths: npt.NDArray[np.int64]
    """(N,) env steps."""
    unfinished: frozenset[int] = frozenset()
    """Numbers of the episodes that were cut off at `max_episode_steps`."""

    @property
    def mean(self) -> float:
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Population standard deviation."""
        return float(self.returns.std())

    @property
    def min(self) -> float:
        return float(self.returns.min())

    @property
    def max(self) -> float:
        return float(self.returns.max())

    def running_mean(self, n: int) -> npt.NDArray[np.float64]:
        """Mean return of the last `n` episodes up to each one, (N,); of fewer at the start."""
        sums = np.concatenate([[0.0], np.cumsum(self.returns)])
        ends = np.arange(1, len(self.returns) + 1)
        starts = np.maximum(ends - n, 0)
        means: npt.NDArray[np.float64] = (sums[ends] - sums[starts]) / (ends - starts)
        return means

    def cut_off_text(self, max_episode_steps: int, remedy: str) -> str | None:
        """One line about unfinished episodes; None if there are none.

        Args:
            max_episode_steps: of the evaluation.
            remedy: what to do if they need more.
        """
        if not self.unfinished:
            return None
        return (
            f"{len(self.unfinished)} of {len(self.returns)} evaluated episodes had not ended after "
            f"{max_episode_steps:,} env steps and were cut off; they count with their return up to "
            f"there; {remedy}"
        )


def evaluate(
    runner: PolicyRunner,
    env: EnvSettings,
    *,
    num_episodes: int,
    seed: int,
    deterministic: bool = True,
    video: Path | None = None,
    max_episode_steps: int = MAX_EVALUATED_STEPS,
    on_message: Callable[[str], None] = lambda _: None,
) -> EvaluationResult:
    """Plays `num_episodes` episodes; episode i starts from seed + i.

    Args:
        runner: The policy.
        env: What it plays; the time limit is that of these settings.
        num_episodes: At least 1.
        seed: At least 0; also seeds the samples of a stochastic policy.
        deterministic: Take the mode of the action distribution instead of a sample.
        video: An mp4 file for episode 0.
        max_episode_steps: Env steps after which an episode is cut off.
        on_message: Receives a line now and then with the progress of a long evaluation.

    Raises:
        EnvError: if the environment cannot be made, read by this policy, or drawn, or if it
            raises or returns NaN or infinity in an episode.
        OutputError: if the video cannot be written.
        SettingsError: if there are no episodes to play or the seed is negative.
    """
    if num_episodes < 1 or seed < 0:
        raise SettingsError(
            f"num_episodes={num_episodes} and seed={seed} are out of range; give at least 1 "
            f"episode and a seed from 0"
        )
    generator = torch.Generator().manual_seed(seed)
    with ExitStack() as stack:
        on_gpu = any(p.is_cuda for p in runner.actor.parameters())
        most = NUM_PARALLEL_ENVS_ON_GPU if on_gpu else NUM_PARALLEL_ENVS
        envs = _make_envs(stack, env, min(num_episodes, most), video is not None)
        check_spaces(runner, envs[0], env.id)
        add_frame = _no_frame if video is None else stack.enter_context(mp4_video(video, envs[0]))
        history = RunningHistory(len(envs), runner.actor.context_length, runner.action_spec)
        episodes = _Episodes(
            envs, env.id, history, num_episodes, seed, max_episode_steps, add_frame
        )
        return episodes.play(runner, deterministic, generator, on_message)


def _make_envs(
    stack: ExitStack, env: EnvSettings, num_envs: int, drawable: bool
) -> list[gym.Env[Any, Any]]:
    """Environments that the stack closes; with video, the first one can be drawn."""
    envs = []
    for index in range(num_envs):
        made = make_drawable_env(env) if drawable and index == 0 else make_env(env)
        stack.callback(made.close)
        envs.append(made)
    return envs


def check_spaces(runner: PolicyRunner, env: gym.Env[Any, Any], env_id: str) -> None:
    """Compares the spaces of an environment with those of a policy.

    Raises:
        EnvError: if the policy was trained for other spaces.
    """
    raw, flat = raw_observation_space(env), env.observation_space.shape
    own = raw.shape if isinstance(raw, gym.spaces.Box) else flat
    if runner.observation_shape not in (own, flat):
        raise EnvError(
            f"environment {env_id} has observations of shape {flat} but the policy reads "
            f"{runner.observation_shape}; evaluate it in the environment it was trained in"
        )
    read = runner.spec.observed_space if isinstance(runner, BundledPolicy) else None
    if read is not None and not isinstance(read, BoxSpec):  # rows of one length are not all alike
        theirs = observed_part(space_spec(raw))
        if theirs.layout != read.layout:
            raise EnvError(
                f"environment {env_id} has observations that are {brief(theirs.words)}, but the "
                f"policy reads {brief(read.words)}; evaluate it in the environment it was trained "
                f"in"
            )
    action_spec = ActionSpec.from_space(env.action_space)
    if action_spec != runner.action_spec:
        raise EnvError(
            f"environment {env_id} has actions {env.action_space} but the policy has "
            f"{runner.action_spec.size} {runner.action_spec.kind} actions with other bounds or "
            f"number; evaluate it in the environment it was trained in"
        )


def _no_frame(env: gym.Env[Any, Any]) -> None:
    """Draws nothing without a video."""


class _Episodes:
    """The running episodes, one in each environment, and the results so far."""

    def __init__(
        self,
        envs: list[gym.Env[Any, Any]],
        env_id: str,
        history: RunningHistory,
        num_episodes: int,
        seed: int,
        max_episode_steps: int,
        add_frame: AddFrame,
    ) -> None:
        self._envs = envs
        self._env_id = env_id
        self._spec = ActionSpec.from_space(envs[0].action_space)
        self._history = history
        self._seed = seed
        self._max_episode_steps = max_episode_steps
        self._add_frame = add_frame
        self._waiting: Iterator[int] = iter(range(num_episodes))
        self._returns = np.zeros(num_episodes, np.float64)
        self._lengths = np.zeros(num_episodes, np.int64)
        self._unfinished: set[int] = set()
        self._num_done = 0
        self._obs: dict[int, Any] = {}  # env index -> last observation, of envs still at work
        self._masks: dict[int, Any] = {}  # env index -> action mask, where there is one
        self._episodes: dict[int, int] = {}  # env index -> episode

    def play(
        self,
        runner: PolicyRunner,
        deterministic: bool,
        generator: torch.Generator,
        on_message: Callable[[str], None],
    ) -> EvaluationResult:
        started, report_at_s = time.monotonic(), _FIRST_REPORT_S
        for index in range(len(self._envs)):
            self._begin(index)
        while self._obs:
            running = list(self._obs)
            obs = np.stack([self._obs[index] for index in running])  # (B, O)
            seen = self._history.observed(obs, running)
            raw = obs.reshape(len(obs), *runner.observation_shape)
            actions = runner.act(
                raw,
                deterministic=deterministic,
                generator=generator,
                history=seen,
                mask=self._mask(running),
            )
            self._history.acted(actions.actions, running)
            for index, action in zip(running, actions.env_actions, strict=True):
                self._step(index, action)
            if time.monotonic() - started > report_at_s:
                on_message(self._report())
                report_at_s *= 2
        return EvaluationResult(self._returns, self._lengths, frozenset(self._unfinished))

    def _mask(self, running: list[int]) -> npt.NDArray[np.bool_] | None:
        """(B, D) which actions these envs allow; None: all."""
        if not self._masks:
            return None
        everything = np.ones(self._spec.num_dist_inputs, np.bool_)
        return np.stack([self._masks.get(index, everything) for index in running])

    def _note_mask(self, index: int, info: dict[str, Any]) -> None:
        """Keeps what an env allows next.

        Raises:
            ValueError: if its mask does not fit the actions, or allows none.
        """
        mask = self._spec.mask_of(info)
        if mask is None:
            self._masks.pop(index, None)
        else:
            self._masks[index] = mask

    def _report(self) -> str:
        return (
            f"evaluating: {self._num_done} of {len(self._lengths)} episodes done, "
            f"{self._lengths.sum():,} env steps so far"
        )

    def _begin(self, index: int) -> None:
        """Starts the next waiting episode in an env, or retires the env."""
        episode = next(self._waiting, None)
        if episode is None:
            self._obs.pop(index, None)
            return
        self._episodes[index] = episode
        self._history.forget(index)
        try:
            obs, info = self._envs[index].reset(seed=self._seed + episode)
            error = not_finite(obs)
            self._note_mask(index, info)
        except Exception as raised:  # an environment may raise anything
            raise self._failure(episode, exception_text(raised)) from raised
        if error:
            raise self._failure(episode, error)
        self._obs[index] = obs
        self._draw(index)

    def _step(self, index: int, action: Any) -> None:
        episode = self._episodes[index]
        self._lengths[episode] += 1
        try:
            obs, reward, terminated, truncated, info = self._envs[index].step(action)
            error = not_finite(obs, float(reward))
            if not (terminated or truncated):
                self._note_mask(index, info)
        except Exception as raised:  # an environment may raise anything
            raise self._failure(episode, exception_text(raised)) from raised
        if error:
            raise self._failure(episode, error)
        self._obs[index] = obs
        self._returns[episode] += float(reward)
        self._draw(index)
        is_over = terminated or truncated
        if not is_over and self._lengths[episode] >= self._max_episode_steps:
            self._unfinished.add(episode)
            is_over = True
        if is_over:
            self._num_done += 1
            self._begin(index)

    def _failure(self, episode: int, error: str) -> EnvError:
        where = failure_text(self._seed + episode, int(self._lengths[episode]), error)
        return EnvError(
            f"environment {self._env_id} failed in episode {episode} of the evaluation, {where}; "
            f"a score needs all episodes: fix the environment"
        )

    def _draw(self, index: int) -> None:
        if self._episodes[index] == 0:
            self._add_frame(self._envs[index])
