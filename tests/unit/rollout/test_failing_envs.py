"""Environments that raise or return NaN: what remains is what an undisturbed sampler gives."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import count
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
from ray.rllib.policy.sample_batch import SampleBatch

from custom_models.history import History
from rl_service.common.errors import TrainingFailedError
from rl_service.rollout.env_failures import FailedEpisode
from rl_service.rollout.episodes import SeededEpisodes, episode_seed
from rl_service.rollout.filters import ReturnScaler, RunningFilter
from rl_service.rollout.fragments import ACTOR_INPUTS, LOSS_MASK, Columns
from rl_service.rollout.sampler import Acted, VectorSampler
from rl_service.rollout.stepping import GymStepping

SEED, WORKER = 7, 1
NUM_ENVS, NUM_STEPS, LENGTH, CONTEXT = 3, 5, 7, 3
SPACES = {"discrete": gym.spaces.Discrete(2), "box": gym.spaces.Box(-2.0, 2.0, (2,))}

Fault = tuple[int, int, int, str]
"""Env, episode and step (0: the reset) in which it fails, and how."""

ERRORS = {
    "raise": "RuntimeError: the motor is stuck",
    "nan": "observation has NaN at index 1",
    "inf": "observation has -inf at index 2",
    "reward": "reward is nan",
    "none": "observation has the shape () instead of (3,)",
    "short": "observation has the shape (2,) instead of (3,)",
}


def seed_of(env: int, episode: int) -> int:
    return episode_seed(SEED, WORKER, env, episode)


class World:
    """What all the envs of a test share: the faults to come, and what has been shown."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self.faults = {(seed_of(e, n), t): what for e, n, t, what in faults}
        self.made: list[Faulty] = []
        self.shown: list[npt.NDArray[np.float32]] = []
        """Every observation that came without a fault."""
        self.paid: list[tuple[int, float]] = []
        """(seed, reward) of every step without a fault."""


class Faulty(gym.Env[Any, Any]):
    """Observation (mark of the seed, t, sum of actions); ends after `LENGTH` steps.

    Every other episode is truncated, the rest terminate.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,))

    def __init__(self, world: World, space: gym.Space[Any]) -> None:
        self.world, self.action_space = world, space
        self.is_broken = self.is_closed = False
        world.made.append(self)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        assert seed is not None
        self.seed, self.t, self.total = seed, 0, 0.0
        self.mark = float(self.np_random.random())
        return self._observed(self._fault()), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.total += float(np.sum(action))
        fault = self._fault()
        reward = np.nan if fault == "reward" else self.mark + self.t + self.total
        if fault is None:
            self.world.paid.append((self.seed, float(np.float32(reward))))
        over, limited = self.t == LENGTH, self.seed % 2 == 0
        return self._observed(fault), reward, over and not limited, over and limited, {}

    def close(self) -> None:
        self.is_closed = True

    def _fault(self) -> str | None:
        assert not self.is_broken, "an env that has raised is used again"
        fault = self.world.faults.get((self.seed, self.t))
        if fault == "raise":
            self.is_broken = True
            raise RuntimeError("the motor\nis stuck")
        return fault

    def _observed(self, fault: str | None) -> npt.NDArray[np.float32]:
        obs = np.array([self.mark, self.t, self.total], np.float32)
        if fault is None:
            self.world.shown.append(obs.copy())
        if fault in ("none", "short"):
            return None if fault == "none" else obs[:2]  # type: ignore[return-value]
        obs[{"nan": 1, "inf": 2}.get(fault or "", [])] = np.nan if fault == "nan" else -np.inf
        return obs


def act(kind: str, history: History, masks: Any) -> Acted:
    """A policy whose every number depends on all the steps that it may look at."""
    rows = []
    for obs, actions, n in zip(*history, strict=True):
        seen = float(np.sum(obs[len(obs) - 1 - n :])) + float(np.sum(actions[len(actions) - n :]))
        rows.append([seen, n])
    inputs = np.array(rows, np.float32)  # (B, 2)
    actions = np.stack([np.sin(inputs[:, 0]), np.cos(inputs[:, 0])], 1)  # (B, 2)
    dist_inputs = np.concatenate([actions, inputs], 1)
    if kind == "discrete":
        return Acted((actions[:, 0] > 0).astype(np.int64), actions, inputs)
    return Acted(actions, dist_inputs, inputs)


def build(
    world: World, kind: str = "discrete", acting: int = 1, max_failures: int = 99, **kwargs: Any
) -> VectorSampler:
    space = SPACES[kind]
    envs = [
        SeededEpisodes(partial(Faulty, world, space), SEED, WORKER, e)
        for e in range(kwargs.get("num_envs", NUM_ENVS))
    ]
    return VectorSampler(
        GymStepping(envs, max_failures),
        lambda num_actions: partial(act, kind),
        num_context_steps=CONTEXT,
        acting_context_length=acting,
        obs_filter=kwargs.get("obs_filter"),
        return_scaler=kwargs.get("scaler"),
        worker_index=WORKER,
    )


CASES: dict[str, list[Fault]] = {
    "at the first reset": [(0, 0, 0, "nan"), (1, 0, 0, "raise"), (1, 1, 0, "raise")],
    "at a later reset": [(0, 1, 0, "raise"), (2, 1, 0, "inf"), (2, 2, 0, "nan")],
    "at the first step": [(1, 0, 1, "raise"), (2, 1, 1, "nan")],
    "at the last step of a fragment": [(0, 0, NUM_STEPS, "raise")],
    "at the first step of a fragment": [(0, 0, NUM_STEPS + 1, "inf")],
    "in an episode of the fragment before": [(1, 0, NUM_STEPS + 2, "reward"), (1, 2, 4, "raise")],
    "at the last step of an episode": [(2, 0, LENGTH, "reward"), (2, 1, LENGTH, "raise")],
    "after another episode of the fragment": [(0, 1, 2, "nan"), (0, 2, 2, "nan")],
    "in two envs at once": [(0, 0, 3, "raise"), (2, 0, 3, "nan")],
    "in another shape": [(0, 0, 2, "none"), (1, 0, 2, "short"), (1, 1, 0, "short")],
    "in another shape in all envs": [(e, 0, 2, "short") for e in range(NUM_ENVS)],
    "in all envs at once": [(0, 0, 4, "raise"), (1, 0, 4, "inf"), (2, 0, 4, "reward")],
    "several times in one fragment": [
        (0, 0, 2, "raise"),
        (0, 1, 0, "nan"),
        (0, 2, 3, "raise"),
        (0, 3, 1, "reward"),
        (1, 0, 4, "nan"),
        (1, 1, 4, "nan"),
    ],
}


def kept_steps(faults: list[Fault], env: int, num_fragments: int) -> list[list[tuple[int, int]]]:
    """(seed, t) of the steps that each fragment of an env has to hold, one step at a time."""
    failing = {(n, t) for e, n, t, _ in faults if e == env}
    fragments: list[list[tuple[int, int]]] = []
    episodes, t = count(), LENGTH
    for _ in range(num_fragments):
        rows: list[tuple[int, int]] = []
        while len(rows) < NUM_STEPS:
            if t == LENGTH:
                t, n = 0, next(n for n in episodes if (n, 0) not in failing)
            rows.append((seed_of(env, n), t))
            t += 1
            if (n, t) in failing:
                rows, t = [row for row in rows if row[0] != seed_of(env, n)], LENGTH
        fragments.append(rows)
    return fragments


def fragments_of(batch: Columns) -> list[Columns]:
    """A batch, env by env: ids tell whose episode a row is of."""
    owners = (batch[SampleBatch.EPS_ID] >> 20) - WORKER * NUM_ENVS
    return [{k: v[owners == e] for k, v in batch.items()} for e in range(NUM_ENVS)]


@pytest.mark.parametrize("acting", [1, 3])
@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("faults", CASES.values(), ids=CASES)
def test_the_rows_that_remain_are_those_of_an_undisturbed_sampler(
    faults: list[Fault], kind: str, acting: int
) -> None:
    num_batches = 4
    calm = build(World(), kind, acting).sample(num_batches * NUM_STEPS + 5 * LENGTH)
    calm_rows = {
        (row[0], t): i for i, (row, t) in enumerate(zip(calm["obs"], calm["t"], strict=True))
    }
    sampler = build(World(faults), kind, acting)
    expected = [kept_steps(faults, e, num_batches) for e in range(NUM_ENVS)]
    for b in range(num_batches):
        batch = sampler.sample(NUM_STEPS)
        assert batch[LOSS_MASK].sum() == NUM_STEPS * NUM_ENVS
        for e, fragment in enumerate(fragments_of(batch)):
            steps = fragment[LOSS_MASK]
            wanted = expected[e][b]
            assert fragment["t"][steps].tolist() == [t for _, t in wanted]
            places = np.array([calm_rows[mark_of(s), t] for s, t in wanted])
            for name in (*calm.keys() - {"eps_id", LOSS_MASK},):
                np.testing.assert_array_equal(fragment[name][steps], calm[name][places], name)
            assert np.isfinite(fragment["obs"]).all()
            _check_context(fragment, wanted)
            _check_final_rows(fragment, wanted)
    assert ACTOR_INPUTS in calm


def mark_of(seed: int) -> np.float32:
    rng, _ = gym.utils.seeding.np_random(seed)
    return np.float32(rng.random())


def _check_context(fragment: Columns, wanted: list[tuple[int, int]]) -> None:
    """Up to K-1 earlier steps of the episode that the first step is of, if it goes on."""
    first = int(np.argmax(fragment[LOSS_MASK]))
    t = wanted[0][1]
    assert fragment["t"][:first].tolist() == list(range(max(0, t - CONTEXT), t))
    assert len(set(fragment["eps_id"][: first + 1])) == 1
    assert set(fragment["obs"][:first, 0]) <= {mark_of(wanted[0][0])}


def _check_final_rows(fragment: Columns, wanted: list[tuple[int, int]]) -> None:
    """One after each time limit and one at the cut, of the same episode as the step before."""
    steps = np.flatnonzero(fragment[LOSS_MASK])
    final = [i for i in np.flatnonzero(~fragment[LOSS_MASK]) if i > steps[0]]
    ends = [(s, t + 1) for s, t in wanted if t + 1 == LENGTH and s % 2 == 0]
    cut_seed, cut_t = wanted[-1]
    if cut_t + 1 < LENGTH:
        ends.append((cut_seed, cut_t + 1))
    assert fragment["obs"][final, :2].tolist() == [[mark_of(s), t] for s, t in ends]
    assert fragment["t"][final].tolist() == [t for _, t in ends]
    assert (fragment["eps_id"][final] == fragment["eps_id"][np.array(final, int) - 1]).all()


@pytest.mark.parametrize("faults", CASES.values(), ids=CASES)
def test_every_failure_is_told_with_its_seed_and_step_and_counts_as_no_episode(
    faults: list[Fault],
) -> None:
    world = World(faults)
    sampler = build(world)
    for _ in range(4):
        sampler.sample(NUM_STEPS)
    assert sorted(sampler.pop_failures()) == sorted(
        FailedEpisode(WORKER, e, seed_of(e, n), t, ERRORS[what]) for e, n, t, what in faults
    )
    assert sampler.pop_failures() == []
    assert {episode.length for episode in sampler.pop_episodes()} == {LENGTH}
    broken = [env for env in world.made if env.is_broken]
    assert len(broken) == sum(what == "raise" for *_, what in faults)
    assert len(world.made) == NUM_ENVS + len(broken)
    assert all(env.is_closed for env in broken)


@pytest.mark.parametrize("faults", CASES.values(), ids=CASES)
def test_statistics_are_those_of_all_that_was_shown_without_a_fault(faults: list[Fault]) -> None:
    world = World(faults)
    observations, returns = RunningFilter((3,)), RunningFilter(())
    scaler = ReturnScaler(returns, NUM_ENVS, 0.5)
    sampler = build(world, obs_filter=observations, scaler=scaler)
    for _ in range(4):
        batch = sampler.sample(NUM_STEPS)
        assert all(np.isfinite(column).all() for column in batch.values())
    assert observations.stats.count == len(world.shown)
    shown = np.array(world.shown, np.float64)
    np.testing.assert_allclose(observations.stats.mean, shown.mean(0), rtol=1e-6)
    np.testing.assert_allclose(observations.stats.variance, shown.var(0), rtol=1e-6)
    discounted, so_far = [], dict.fromkeys((seed for seed, _ in world.paid), 0.0)
    for seed, reward in world.paid:
        so_far[seed] = so_far[seed] * 0.5 + reward
        discounted.append(so_far[seed])
    assert returns.stats.count == len(discounted)
    assert returns.stats.mean == pytest.approx(np.mean(discounted), rel=1e-6)
    assert returns.stats.variance == pytest.approx(np.var(discounted), rel=1e-6)


def test_going_on_from_a_state_after_failures_equals_never_having_stopped() -> None:
    faults = [
        fault for case in ("in two envs at once", "at a later reset") for fault in CASES[case]
    ]
    unbroken = build(World(faults), acting=3)
    unbroken.sample(NUM_STEPS)
    state = unbroken.state()
    resumed = build(World(faults), acting=3)
    assert resumed.restore(state) == []
    for _ in range(3):
        expected, actual = unbroken.sample(NUM_STEPS), resumed.sample(NUM_STEPS)
        for name in expected:
            np.testing.assert_array_equal(actual[name], expected[name], name)


def test_an_env_that_raises_while_it_is_brought_back_starts_a_new_episode() -> None:
    sampler = build(World(), num_envs=1)
    sampler.sample(NUM_STEPS)
    state = sampler.state()
    resumed = build(World([(0, 0, 2, "raise"), (0, 1, 0, "raise")]), num_envs=1)
    assert resumed.restore(state) == [0]
    assert resumed.sample(2)["obs"][0, 0] == mark_of(seed_of(0, 2))
    assert [failure.seed for failure in resumed.pop_failures()] == [seed_of(0, 1)]


def always(step: int, what: str) -> list[Fault]:
    return [(0, n, step, what) for n in range(50)]


@pytest.mark.parametrize("step", [0, 1, 3])
@pytest.mark.parametrize("what", ["raise", "nan"])
def test_an_env_that_always_fails_ends_the_call(step: int, what: str) -> None:
    sampler = build(World(always(step, what)), max_failures=2, num_envs=2)
    with pytest.raises(TrainingFailedError) as caught:
        sampler.sample(NUM_STEPS)
    assert str(caught.value) == (
        f"3 episodes failed in their environment, more than env.max_failed_episodes=2; the last: "
        f"rollout worker 1, env 0, reset(seed={seed_of(0, 2)}), step {step}: {ERRORS[what]}; "
        f"fix the environment or raise the limit, then continue from the last checkpoint with "
        f"--resume"
    )


def test_the_limit_is_of_one_call_and_0_stands_none() -> None:
    faults = [(0, 0, 2, "nan"), (0, 1, NUM_STEPS + 1, "nan")]
    patient = build(World(faults), max_failures=1, num_envs=1)
    patient.sample(NUM_STEPS)
    patient.sample(NUM_STEPS)
    assert len(patient.pop_failures()) == 2
    with pytest.raises(TrainingFailedError, match=r"^1 episode failed in its environment, more"):
        build(World(faults), max_failures=0, num_envs=1).sample(NUM_STEPS)
