"""The vector sampler's rows on an environment whose every number is known."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
from ray.rllib.policy.sample_batch import SampleBatch

from custom_models.history import History
from rl_service.rollout.episodes import SeededEpisodes
from rl_service.rollout.filters import ReturnScaler, RunningFilter
from rl_service.rollout.fragments import LOSS_MASK, context_rows, segment_ids
from rl_service.rollout.sampler import Acted, VectorSampler
from rl_service.rollout.stepping import GymStepping


class Counter(gym.Env[npt.NDArray[np.float32], int]):
    """Observation (episode seed's parity, t); terminates or is truncated after `length` steps."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length: int, *, terminates: bool) -> None:
        self.length, self.terminates = length, terminates

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.mark = 0, float(self.np_random.integers(1000))
        return self._obs(), {}

    def step(self, action: int) -> Any:
        self.t += 1
        ended = self.t == self.length
        return self._obs(), 1.0, ended and self.terminates, ended and not self.terminates, {}

    def _obs(self) -> npt.NDArray[np.float32]:
        return np.array([self.mark, self.t], np.float32)


def build(
    *envs: Counter, context: int = 3, scaler: ReturnScaler | None = None, **kwargs: Any
) -> VectorSampler:
    calls = iter(range(10**6))

    def act(history: History, masks: Any) -> Acted:
        call, num_envs = next(calls), len(history.obs)
        actions = np.full(num_envs, call % 2, np.int64)
        zeros = np.zeros((num_envs, 2), np.float32)
        return Acted(actions, zeros, None)

    return VectorSampler(
        GymStepping(
            [SeededEpisodes(lambda env=env: env, 7, 1, i) for i, env in enumerate(envs)], 0
        ),
        lambda num_actions: act,
        num_context_steps=context,
        acting_context_length=1,
        obs_filter=kwargs.get("obs_filter"),
        return_scaler=scaler,
        worker_index=1,
    )


def test_rows_are_context_steps_and_final_observations() -> None:
    sampler = build(Counter(100, terminates=True))
    first, second = sampler.sample(5), sampler.sample(5)
    assert first[SampleBatch.T].tolist() == [0, 1, 2, 3, 4, 5]
    assert first[LOSS_MASK].tolist() == [True] * 5 + [False]
    assert second[SampleBatch.T].tolist() == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert second[LOSS_MASK].tolist() == [False] * 3 + [True] * 5 + [False]
    assert second[SampleBatch.OBS][:, 1].tolist() == list(range(2, 11))
    assert second[SampleBatch.ACTIONS][:8].tolist() == [0, 1, 0, 1, 0, 1, 0, 1]
    assert context_rows(second, segment_ids(second)).tolist() == [True] * 3 + [False] * 6


def test_a_time_limit_leaves_its_final_observation_and_a_termination_none() -> None:
    limited = build(Counter(3, terminates=False)).sample(7)
    assert limited[SampleBatch.T].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert limited[LOSS_MASK].tolist() == [True] * 3 + [False] + [True] * 3 + [False, True, False]
    assert not limited[SampleBatch.TERMINATEDS].any()
    ended = build(Counter(3, terminates=True)).sample(6)
    assert ended[SampleBatch.T].tolist() == [0, 1, 2, 0, 1, 2]
    assert ended[SampleBatch.TERMINATEDS].tolist() == [False, False, True] * 2


def test_context_does_not_outlive_its_episode_and_is_as_long_as_asked() -> None:
    sampler = build(Counter(6, terminates=True))
    sampler.sample(6)
    assert sampler.sample(2)[SampleBatch.T].tolist() == [0, 1, 2]
    assert sampler.sample(2)[SampleBatch.T].tolist() == [0, 1, 2, 3, 4]
    assert build(Counter(9, terminates=True), context=0).sample(2)[LOSS_MASK].tolist() == [
        True,
        True,
        False,
    ]


def test_episode_ids_are_unique_over_envs_and_episodes_and_metrics_are_raw() -> None:
    sampler = build(Counter(3, terminates=True), Counter(2, terminates=False))
    batch = sampler.sample(6)
    steps = batch[LOSS_MASK]
    assert len(np.unique(batch[SampleBatch.EPS_ID][steps])) == 2 + 3
    episodes = sampler.pop_episodes()
    assert sorted((e.length, e.episode_return) for e in episodes) == [
        (2, 2.0),
        (2, 2.0),
        (2, 2.0),
        (3, 3.0),
        (3, 3.0),
    ]
    assert sampler.pop_episodes() == []


def test_every_episode_has_its_own_seed_and_the_same_one_in_another_process() -> None:
    one, other = build(Counter(2, terminates=True)), build(Counter(2, terminates=True))
    a, b = one.sample(8), other.sample(8)
    assert np.array_equal(a[SampleBatch.OBS], b[SampleBatch.OBS])
    assert len(np.unique(a[SampleBatch.OBS][:, 0])) == 4


def test_going_on_from_a_state_equals_never_having_stopped() -> None:
    def fresh() -> VectorSampler:
        returns = RunningFilter(())
        return build(
            Counter(7, terminates=True),
            Counter(5, terminates=False),
            scaler=ReturnScaler(returns, 2, 0.9),
        )

    unbroken = fresh()
    unbroken.sample(9)
    state = unbroken.state()
    assert unbroken.return_scaler is not None
    stats = unbroken.return_scaler.filter.copy()
    expected = unbroken.sample(9)
    resumed = fresh()
    assert resumed.return_scaler is not None
    resumed.return_scaler.filter.sync(stats)
    assert resumed.restore(state) == []
    history = resumed._history.observed(np.zeros((2, 2), np.float32))
    resumed._open_policy(18)(history, None)  # this act counts its calls: 9 came before
    actual = resumed.sample(9)
    for name in expected:
        assert np.array_equal(actual[name], expected[name]), name


def test_an_env_that_cannot_be_replayed_starts_a_new_episode() -> None:
    class Erratic(Counter):
        def _obs(self) -> npt.NDArray[np.float32]:
            return super()._obs() + np.float32(np.random.random())

    first = build(Erratic(50, terminates=True))
    first.sample(9)
    seen = RunningFilter((2,))
    second = build(Erratic(50, terminates=True), obs_filter=seen)
    assert second.restore(first.state()) == [0]
    assert seen.stats.count == 0  # its first observation waits for the statistics of all
    assert second.sample(2)[SampleBatch.T].tolist() == [0, 1, 2]
    assert seen.stats.count == 3


def test_filter_normalises_and_keeps_what_is_not_merged_yet() -> None:
    obs_filter = RunningFilter((2,))
    batch = build(Counter(50, terminates=True), obs_filter=obs_filter).sample(40)
    assert obs_filter.stats.count == obs_filter.buffer.count == 41
    assert obs_filter.stats.mean[1] == pytest.approx(20.0)
    assert obs_filter.stats.std[1] == pytest.approx(np.arange(41).std())
    assert np.abs(batch[SampleBatch.OBS]).max() <= 10.0
    merged = RunningFilter((2,))
    merged.apply_changes(obs_filter)
    merged.apply_changes(obs_filter)
    assert merged.stats.count == 82
    assert merged.stats.mean[1] == pytest.approx(20.0)


def test_scaled_rewards_are_divided_by_the_deviation_of_the_discounted_return() -> None:
    returns = RunningFilter(())
    batch = build(Counter(4, terminates=True), scaler=ReturnScaler(returns, 1, 0.5)).sample(6)
    discounted = [1.0, 1.5, 1.75, 1.875, 1.0, 1.5]
    expected = [1.0 / np.sqrt(np.var(discounted[: i + 1]) + 1e-8) for i in range(6)]
    np.testing.assert_allclose(
        batch[SampleBatch.REWARDS][batch[LOSS_MASK]], np.minimum(expected, 10.0), rtol=1e-5
    )
