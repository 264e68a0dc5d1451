"""Chunks cover what is asked, once, and give the values of the whole episode."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from custom_models.configs import GPT2CriticConfig
from custom_models.gpt2_critic import GPT2Critic
from custom_models.interfaces import Chunks
from custom_models.spaces import ActionSpec
from rl_service.algorithms.chunks import critic_chunk_length, gather_chunks, plan_chunks
from rl_service.algorithms.policy import ActorCriticPolicy
from rl_service.config.algorithms import PPOSettings


@pytest.mark.parametrize("chunk_length", [1, 7, 16, 64])
def test_every_row_that_is_not_context_is_asked_exactly_once(chunk_length: int) -> None:
    context = np.zeros(150, bool)
    context[20:27] = context[90:97] = context[0:3] = True
    plan = plan_chunks(context, prefix_length=7, chunk_length=chunk_length)
    asked = np.sort(plan.asked_rows[plan.asked])
    assert asked.tolist() == np.flatnonzero(~context).tolist()


def test_pieces_of_a_run_are_nearly_equal() -> None:
    plan = plan_chunks(np.zeros(130, bool), prefix_length=0, chunk_length=64)
    assert plan.asked.sum(axis=1).tolist() == [65, 65]


def test_a_prefix_before_the_batch_is_padding() -> None:
    plan = plan_chunks(np.zeros(4, bool), prefix_length=3, chunk_length=4)
    column = torch.arange(4)
    chunks = gather_chunks(
        plan, column.float()[:, None], column, column.float(), column, column * 0
    )
    assert chunks.segment_ids.tolist() == [[-1, -1, -1, 0, 0, 0, 0]]
    assert chunks.timesteps[0, 3:].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("attention", ["banded", "window"])
@pytest.mark.parametrize("n_layer", [1, 2, 3])
@pytest.mark.parametrize("chunk_length", [8, 16, 64, 128])
@pytest.mark.parametrize("cuts", [[], [13], [1, 3, 130], [64, 65]])
def test_values_from_fragments_equal_those_of_the_whole_episode(
    attention: str, n_layer: int, chunk_length: int, cuts: list[int]
) -> None:
    """Context reaches across the fragment border: K-1 steps travel with each later fragment."""
    context_length, steps = 6, 140
    spec = ActionSpec.from_space(gym.spaces.Discrete(3))
    torch.manual_seed(0)
    config = GPT2CriticConfig(
        context_length=context_length, attention=attention, n_layer=n_layer, n_head=2, n_embd=8
    )
    critic = GPT2Critic(config, 4, spec).eval()
    obs, actions = torch.randn(steps, 4), torch.randint(3, (steps,))
    t, rewards = torch.arange(steps), torch.zeros(steps)
    rows, context, segments = [], [], []
    for segment, (start, stop) in enumerate(pairwise([0, *cuts, steps])):
        first = max(0, start - context_length + 1)
        rows.append(np.arange(first, stop))
        context.append(np.arange(first, stop) < start)
        segments.append(np.full(stop - first, segment))
    where = np.concatenate(rows)
    with torch.no_grad():
        whole = critic(Chunks(*(c[None] for c in (obs, actions, rewards, t, t * 0))), steps)[0]
        plan = plan_chunks(np.concatenate(context), context_length - 1, chunk_length)
        chunks = gather_chunks(
            plan,
            obs[where],
            actions[where],
            rewards[where],
            t[where],
            torch.from_numpy(np.concatenate(segments)),
        )
        values = critic(chunks, plan.num_values)
    asked = torch.from_numpy(plan.asked)
    assert int(asked.sum()) == steps
    expected = whole[where][torch.from_numpy(plan.asked_rows)]
    torch.testing.assert_close(values[asked], expected[asked], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("context_length", "minibatch", "expected"),
    [(1, 128, 1), (2, 128, 16), (8, 128, 16), (64, 128, 32), (512, 128, 128), (8, 4, 4)],
)
def test_a_minibatch_has_eight_chunks_of_half_a_context_or_more(
    context_length: int, minibatch: int, expected: int
) -> None:
    policy: Any = SimpleNamespace(
        net=SimpleNamespace(config=SimpleNamespace(num_context_steps=context_length - 1)),
        algorithm=PPOSettings(minibatch_size=64, critic_minibatch_size=minibatch),
        minibatch_chunks=ActorCriticPolicy.minibatch_chunks,
    )
    assert critic_chunk_length(policy) == expected


def test_fragments_whose_steps_follow_each_other_are_cut_like_the_others() -> None:
    context = np.zeros(44, bool)
    context[[8, 17, 34, 43]] = True  # the fragment from 18 on ends with its episode
    plan = plan_chunks(context, prefix_length=3, chunk_length=64)
    assert plan.asked.sum(1).tolist() == [8, 8, 8, 8, 8]
    assert plan.num_values == 8
