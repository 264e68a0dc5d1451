"""What every test shares: one thread, no display, no network services, policies to load."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

# Set before torch, pygame or mujoco is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
os.environ["WANDB_MODE"] = "offline"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Of the Ray that tests share, which is not their own; commands that start one drop it again.
os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112, Ray spells it so; see `rl_service.runtime.ray_session`

import numpy as np
import pytest
import torch

from custom_models.configs import MLPConfig
from custom_models.model_config import ModelConfig
from custom_models.nets import ActorCritic, build_actor_critic
from custom_models.spaces import ActionSpec
from rl_service.cli.app import main
from rl_service.config.settings import EnvSettings
from rl_service.policies import write_bundle
from rl_service.rollout.envs import make_env, raw_observation_space
from rl_service.rollout.filters import ObservationNormalizer

if TYPE_CHECKING:
    from rl_service.algorithms.base import OnPolicyAlgorithm
    from rl_service.config.settings import Settings

WriteTestBundle = Callable[..., ActorCritic]


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test runs in an empty folder, where `runs/` and `checkpoints/` would go."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Done(NamedTuple):
    """A command that has ended."""

    status: int
    out: str
    err: str

    @property
    def refusal(self) -> str:
        """The one line of a command that refuses its input."""
        assert (self.status, self.out) == (2, ""), self
        [line] = self.err.splitlines()
        assert line.startswith("error: ")
        return line


Command = Callable[..., Done]


@pytest.fixture
def rl_service(
    in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """`rl-service` in this process and an empty folder; a process of its own takes seconds."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> Done:
        capfd.readouterr()
        status = main(list(arguments))
        return Done(status, *capfd.readouterr())

    return run


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """The Ray that all tests share but those about starting one."""
    from tests.support.rays import shared_ray

    with shared_ray() as address:
        yield address


@pytest.fixture
def local_ray(ray_address: str) -> None:
    """This process is a driver of the shared Ray."""
    from tests.support.rays import connect

    connect(ray_address)


@pytest.fixture
def build() -> Iterator[Any]:
    """Builds algorithms that are stopped at the end of the test."""
    from rl_service.algorithms.build import build_algorithm

    built: list[OnPolicyAlgorithm] = []

    def one(settings: Settings) -> OnPolicyAlgorithm:
        built.append(build_algorithm(settings))
        return built[-1]

    yield one
    for algorithm in built:
        algorithm.stop()


@pytest.fixture
def write_test_bundle() -> WriteTestBundle:
    """Writes the bundle of an untrained net and returns that net."""
    return write_untrained_bundle


def write_untrained_bundle(
    path: Path,
    env_id: str = "CartPole-v1",
    *,
    model: ModelConfig | None = None,
    filtered: bool = False,
    max_episode_steps: int | None = None,
    hide: tuple[int, ...] = (),
    seed: int = 0,
    evaluation: dict[str, Any] | None = None,
    change: Callable[[ActorCritic], None] | None = None,
) -> ActorCritic:
    """Writes a bundle whose net has the weights that it starts with, changed if asked for.

    Returns:
        That net.
    """
    env = EnvSettings(id=env_id, max_episode_steps=max_episode_steps, hide=hide)
    with closing(make_env(env)) as made:
        size, action_space = made.observation_space.shape[0], made.action_space  # type: ignore[index]
        observation_space = raw_observation_space(made)
    torch.manual_seed(seed)
    spec = ActionSpec.from_space(action_space)
    net = build_actor_critic(model or MLPConfig(), size, spec)
    if change is not None:
        change(net)
    write_bundle(
        path,
        net=net,
        spaces=(observation_space, action_space),
        env=env,
        normalizer=(
            ObservationNormalizer(np.linspace(-1.0, 1.0, size), np.linspace(0.5, 2.0, size))
            if filtered
            else None
        ),
        value_scale=(1.5, 2.0),
        evaluation={"episode_return_mean": 9.5} if evaluation is None else evaluation,
        provenance={"run": "test"},
    )
    return net
