"""`module:name` environments: what makes environments is called, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from rl_service.common.errors import EnvError
from rl_service.config.settings import EnvSettings
from rl_service.policies import load_bundle
from rl_service.rollout.envs import make_env
from rl_service.training.evaluation import evaluate
from tests.conftest import WriteTestBundle


def typed_factory(**kwargs: Any) -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1", **kwargs)


def untyped_factory(**kwargs):  # type: ignore[no-untyped-def]
    return gym.make("CartPole-v1", **kwargs)


class NoEnv:
    """Says that it was made, which must not happen."""

    def __init__(self, **kwargs: Any) -> None:
        raise AssertionError("a foreign class was called")


def test_an_annotated_function_makes_an_environment() -> None:
    env = make_env(EnvSettings(id=f"{__name__}:typed_factory", max_episode_steps=7))
    assert env.observation_space.shape == (4,)
    env.close()


@pytest.mark.parametrize(
    "env_id", [f"{__name__}:untyped_factory", f"{__name__}:NoEnv", "os:getcwd", "subprocess:run"]
)
def test_nothing_is_called_that_does_not_say_it_makes_environments(env_id: str) -> None:
    with pytest.raises(EnvError, match=r"neither a class derived from gymnasium\.Env nor"):
        make_env(EnvSettings(id=env_id))


def test_a_foreign_bundle_cannot_run_a_program(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "b")
    policy = load_bundle(tmp_path / "b")
    marker = tmp_path / "marker"
    hostile = EnvSettings(id="subprocess:run", kwargs={"args": ["touch", str(marker)]})
    with pytest.raises(EnvError):
        evaluate(policy, hostile, num_episodes=1, seed=0)
    assert not marker.exists()
