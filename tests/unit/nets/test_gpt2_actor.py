"""A GPT-2 that acts: its cache against a plain recomputation of the last K steps."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from custom_models.configs import GPT2CriticConfig
from custom_models.distributions import distribution
from custom_models.history import History, RunningHistory
from custom_models.nets import build_actor_critic
from custom_models.spaces import ActionSpec
from rl_service.algorithms.optimizer import FlatParameters
from rl_service.algorithms.trpo import fisher_product

OBS_SIZE, NUM_ENVS = 4, 3
SPECS = {
    "discrete": ActionSpec("discrete", 3),
    "box": ActionSpec("box", 2, shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0)),
}


def build_actor(spec: ActionSpec, length: int, **more: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_embd": 16, "n_head": 2, "dropout": 0.1, **more}
    config = GPT2CriticConfig(actor_net="gpt2", actor_context_length=length, **sizes)
    actor: Any = build_actor_critic(config, OBS_SIZE, spec, with_critic=False).actor
    with torch.no_grad():
        actor.head.apply(lambda layer: getattr(layer, "weight", torch.zeros(1)).mul_(100.0))
    return actor


class Episodes:
    """Random steps of E envs, whose episodes end at random."""

    def __init__(self, spec: ActionSpec, length: int) -> None:
        self.rng = np.random.default_rng(0)
        self.spec, self.history = spec, RunningHistory(NUM_ENVS, length, spec)

    def observe(self, envs: Any = slice(None)) -> History:
        count = len(np.arange(NUM_ENVS)[envs])
        obs = self.rng.normal(size=(count, OBS_SIZE)).astype(np.float32)
        return self.history.observed(obs, envs)

    def act(self, envs: Any = slice(None), end_rate: float = 0.05) -> None:
        count = len(np.arange(NUM_ENVS)[envs])
        if self.spec.kind == "discrete":
            actions: Any = self.rng.integers(self.spec.size, size=count)
        else:
            actions = self.rng.normal(size=(count, self.spec.size)).astype(np.float32)
        self.history.acted(actions, envs)
        self.history.forget(np.flatnonzero(self.rng.random(NUM_ENVS) < end_rate))


def copied(history: History) -> History:
    return History(*(np.array(column) for column in history))


@torch.inference_mode()
@pytest.mark.parametrize(
    ("kind", "length", "num_steps", "more"),
    [
        ("discrete", 16, 10_000, {"n_layer": 1}),
        ("discrete", 8, 10_000, {"history_actions": True}),
        ("discrete", 8, 1000, {}),
        ("discrete", 2, 1000, {"history_actions": True}),
        ("box", 9, 1000, {"history_actions": True, "n_layer": 3}),
        ("box", 33, 1000, {"history_actions": True, "n_layer": 1}),
    ],
)
def test_the_cache_equals_a_recomputation_of_the_last_steps(
    kind: str, length: int, num_steps: int, more: dict[str, Any]
) -> None:
    spec = SPECS[kind]
    actor, episodes = build_actor(spec, length, **more), Episodes(spec, length)
    for _ in range(length // 2):  # the cache is opened in the middle of episodes
        episodes.observe()
        episodes.act()
    cache, seen, answers = actor.open_cache(), [], []
    for _ in range(num_steps):
        history = episodes.observe()
        seen.append(copied(history))
        answers.append(torch.from_numpy(cache.decide(history)))
        episodes.act(end_rate=1 / 40)
    for start in range(0, len(seen), 500):
        parts = zip(*seen[start : start + 500], strict=True)
        expected = actor.decide(History(*(np.concatenate(column) for column in parts)))
        actual = torch.cat(answers[start : start + 500])
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    assert torch.cat(answers)[:, : spec.size].std(0).min() > 0.05


@torch.inference_mode()
@pytest.mark.parametrize("history_actions", [False, True])
def test_some_envs_may_act_more_often_than_others(history_actions: bool) -> None:
    spec = SPECS["discrete"]
    actor = build_actor(spec, 8, history_actions=history_actions)
    episodes = Episodes(spec, 8)
    cache = actor.open_cache()
    cache.decide(episodes.observe())
    episodes.act()
    for step in range(200):
        envs: Any = np.flatnonzero(episodes.rng.random(NUM_ENVS) < 0.6) if step % 3 else slice(None)
        if isinstance(envs, np.ndarray) and not len(envs):
            continue
        history = episodes.observe(envs)
        actual = torch.from_numpy(cache.decide(history))
        torch.testing.assert_close(actual, actor.decide(history), rtol=0, atol=1e-5)
        episodes.act(envs)


@pytest.mark.parametrize("kind", SPECS)
def test_its_fisher_product_is_symmetric(kind: str) -> None:
    """One factor is differentiated forward, the other backward."""
    actor, spec = build_actor(SPECS[kind], 8, history_actions=True).double(), SPECS[kind]
    histories, episodes = [], Episodes(spec, 8)
    for _ in range(5):
        histories.append(copied(episodes.observe()))
        episodes.act()
    inputs = actor.encode(History(*(np.concatenate(part) for part in zip(*histories, strict=True))))
    inputs = inputs._replace(obs=inputs.obs.double())
    if kind == "box":
        inputs = inputs._replace(actions=inputs.actions.double())
    flat = FlatParameters(actor)
    product = fisher_product(flat, inputs, partial(distribution, spec), 0.0)
    a, b = (torch.randn_like(flat.vector.detach()) for _ in range(2))
    torch.testing.assert_close(a @ product(b), b @ product(a))
    assert a @ product(a) > 0
