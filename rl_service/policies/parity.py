"""Recorded outputs that a loaded policy must reproduce: training and serving cannot drift apart."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from custom_models.history import History
from custom_models.spaces import ActionSpec, FloatArray
from rl_service.policies.runner import PolicyRunner
from rl_service.policies.spaces import Space
from rl_service.policies.spec import HistorySpec, ParitySpec

PARITY_TOLERANCE = 1e-5
_MOST_SAMPLES, _MOST_NUMBERS = 8, 80_000


def record_parity(runner: PolicyRunner, space: Space) -> ParitySpec:
    """Raw observations near those that the policy has seen, and what its actor answers.

    The answers are those of the actor on the CPU in float32, as a bundle is loaded.

    Args:
        runner: the policy.
        space: what it reads.
    """
    size, earlier = space.size, runner.actor.context_length - 1
    rng = np.random.default_rng(0)
    count = max(1, min(_MOST_SAMPLES, _MOST_NUMBERS // ((earlier + 1) * size)))
    obs = _samples(runner, space, count * (earlier + 1), rng)
    obs = obs.reshape(count, earlier + 1, size)  # (N, K, O)
    history = None
    if earlier:
        num_steps = np.arange(count) % (earlier + 1)
        history = History(obs, _actions(runner.action_spec, count, earlier, rng), num_steps)
    with _as_loaded(runner) as loaded:
        answers = loaded.act(
            obs[:, -1].reshape(-1, *space.row_shape), deterministic=True, history=history
        ).dist_inputs
    return ParitySpec(
        observations=_rows(obs[:, -1]),
        history=None if history is None else _history_spec(history),
        dist_inputs=_rows(answers),
    )


@np.errstate(over="ignore", invalid="ignore")  # of a stranger's numbers
def parity_error(policy: PolicyRunner, parity: ParitySpec) -> float:
    """Largest difference from the recorded outputs: absolute near zero, relative beyond.

    Other CPUs round float32 sums in another order.
    """
    shape = (len(parity.observations), *policy.observation_shape)
    observations = np.array(parity.observations, np.float32).reshape(shape)
    history = None if parity.history is None else _read_history(policy, parity)
    answers = policy.act(observations, deterministic=True, history=history).dist_inputs
    expected = np.array(parity.dist_inputs, np.float32)
    error = np.abs(answers - expected) / np.maximum(1.0, np.abs(expected))
    return float(error.max())  # NaN if an answer is none


def _samples(
    runner: PolicyRunner, space: Space, count: int, rng: np.random.Generator
) -> FloatArray:
    """Raw and flattened observations (count, O)."""
    samples = np.stack([space.sample(rng) for _ in range(count)])
    if runner.normalizer is not None:
        noise = rng.standard_normal(samples.shape)
        seen = runner.normalizer.mean + runner.normalizer.std * noise
        samples = np.where(space.is_number, seen, samples)
    return samples.astype(np.float32)


def _actions(
    spec: ActionSpec, count: int, earlier: int, rng: np.random.Generator
) -> npt.NDArray[Any]:
    """Actions (N, K-1) or (N, K-1, A) in the policy's units."""
    if spec.kind == "discrete":
        return rng.integers(spec.size, size=(count, earlier))
    if spec.kind == "multi_discrete":
        return rng.integers(spec.sizes, size=(count, earlier, spec.size))
    return rng.standard_normal((count, earlier, spec.size)).astype(np.float32)


@contextmanager
def _as_loaded(runner: PolicyRunner) -> Iterator[PolicyRunner]:
    """The policy on the CPU and in float32, in a copy if it is not there already."""
    actor = runner.actor
    if any(p.device.type != "cpu" for p in actor.parameters()):
        actor = copy.deepcopy(actor).cpu()
    precision, actor.autocast_dtype = actor.autocast_dtype, None
    try:
        yield PolicyRunner(
            actor,
            runner.observation_shape,
            runner.action_spec,
            runner.normalizer,
            runner.hidden,
        )
    finally:
        actor.autocast_dtype = precision


def _history_spec(history: History) -> HistorySpec:
    return HistorySpec(
        observations=_rows(history.obs[:, :-1].reshape(len(history.obs), -1)),
        actions=_rows(history.actions.reshape(len(history.obs), -1)),
        num_steps=tuple(history.num_steps.tolist()),
    )


def _read_history(policy: PolicyRunner, parity: ParitySpec) -> History:
    assert parity.history is not None
    current = np.array(parity.observations, np.float32)[:, None]  # (N, 1, O)
    num_rows, _, size = current.shape
    earlier = np.array(parity.history.observations, np.float32).reshape(num_rows, -1, size)
    actions = np.array(parity.history.actions)
    spec = policy.action_spec
    actions = actions.astype(spec.row_dtype).reshape(num_rows, earlier.shape[1], *spec.row_shape)
    num_steps = np.array(parity.history.num_steps, np.int64)
    return History(np.concatenate([earlier, current], axis=1), actions, num_steps)


def _rows(array: npt.NDArray[Any]) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, array.tolist()))
