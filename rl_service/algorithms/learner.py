"""One learner: how it improves both nets, and the actor in which a further learner lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import ray
import torch

from rl_service.algorithms.batch import LearnerBatch
from rl_service.algorithms.minibatches import map_columns
from rl_service.algorithms.peers import connect, find_store
from rl_service.algorithms.policy import ActorCriticPolicy
from rl_service.algorithms.sampling import Background
from rl_service.algorithms.state import from_bytes
from rl_service.config.settings import Settings
from rl_service.runtime.process import (
    TorchRandomState,
    prepare_process,
    seed_process,
    set_torch_random_state,
    spare_the_collector,
    torch_random_state,
)

_SEEDS = 2  # a stream of seeds beside those of the order of minibatches


def update_nets(
    policy: ActorCriticPolicy,
    batch: LearnerBatch,
    on_actor: Callable[[dict[str, float]], None] = lambda _: None,
) -> dict[str, float]:
    """Improves actor and critic, side by side if they can learn at once; returns their metrics.

    Args:
        policy: what learns.
        batch: what from.
        on_actor: called with the actor's metrics as soon as it has learned.
    """
    fitting = Background(lambda: policy.update_critic(batch)) if policy.learns_apart else None
    try:
        stats = policy.update_actor(batch)
        on_actor(stats)
    except BaseException:
        if fitting is not None:
            fitting.wait()  # it writes the critic
        raise
    return stats | (policy.update_critic(batch) if fitting is None else fitting.result())


class Place(NamedTuple):
    """Where a learner is."""

    node_id: str
    host: str
    gpu: str | None
    """UUID of its GPU; None on a CPU."""

    @classmethod
    def of(cls, device: torch.device) -> Place:
        """Of this process."""
        on_gpu = device.type == "cuda"
        gpu = str(torch.cuda.get_device_properties(device).uuid) if on_gpu else None
        node_id = str(ray.get_runtime_context().get_node_id())
        return cls(node_id, ray.util.get_node_ip_address(), gpu)


class Copy(NamedTuple):
    """What a learner makes its copy of the policy from."""

    policy_class: type[ActorCriticPolicy]
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    config: dict[str, Any]
    state: bytes
    """The learner's state of learner 0."""


class Learner:
    """One of the further learners, in a process of its own.

    Args:
        rank: 1, 2, …
        settings: of the run.
    """

    def __init__(self, rank: int, settings: Settings) -> None:
        resources = settings.resources
        self._rank, self._size = rank, resources.num_learners
        self._device = torch.device("cuda", 0) if resources.num_gpus else torch.device("cpu")
        prepare_process(resources.learner_threads)
        seeds = np.random.SeedSequence([settings.seed, _SEEDS, rank])
        self._seed = int(seeds.generate_state(1)[0])

    def place(self) -> Place:
        return Place.of(self._device)

    def build(self, copy: Copy, random_state: TorchRandomState | None) -> None:
        """Builds the copy.

        Args:
            copy: of the policy.
            random_state: to continue from; None for a fresh one.
        """
        seed_process(self._seed)
        policy = copy.policy_class(copy.observation_space, copy.action_space, copy.config)
        policy.set_learner_state(from_bytes(copy.state))
        torch.manual_seed(self._seed)
        if random_state is not None:
            set_torch_random_state(random_state, policy.device)
        self._policy = policy
        spare_the_collector()

    def join(self, host: str, store: tuple[str, int]) -> None:
        """Connects the copy with the other learners.

        Args:
            host: address at which they reach this one.
            store: host and port where they find each other.
        """
        found, device = find_store(*store), self._policy.device
        self._policy.join(connect(found, self._rank, self._size, host, device))

    def learn(self, arrays: LearnerBatch, global_timestep: int) -> TorchRandomState:
        """Takes the same steps as learner 0; returns the random state after them.

        Args:
            arrays: the batch, with arrays as columns.
            global_timestep: that learning rates follow.
        """
        policy = self._policy
        policy.global_timestep = global_timestep
        # Arrays of the object store may not be written.
        batch = map_columns(arrays, lambda column: policy.to_device(np.array(column)))
        update_nets(policy, batch)
        return torch_random_state(policy.device)
