"""The fastest public implementations of PPO, as other sides of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from shutil import which
from statistics import median
from typing import Any, NamedTuple

from tests.benchmarks.against_sb3 import ppo_training
from tests.benchmarks.child import OpenSubject
from tests.benchmarks.repeats import best, ratio
from tests.benchmarks.tables import Table

ENVIRONMENTS = ("CartPole-v1", "LunarLander-v3", "HalfCheetah-v4")
"""Those in which they are measured."""
NUM_WORKERS = 2


def plain_training(env_id: str, sizes: Any) -> dict[str, Any]:
    """Arguments of a peer that names its sizes as we do.

    Args:
        env_id: of gymnasium.
        sizes: has `num_envs`, `train_batch_size`, `minibatch_size` and `num_epochs`.
    """
    names = ("num_envs", "train_batch_size", "minibatch_size", "num_epochs")
    return {"env_id": env_id, **{name: getattr(sizes, name) for name in names}}


class Peer(NamedTuple):
    """A subject: it has `train`, and `episode_return`, which shows that it learns."""

    module: str
    """Of `tests.benchmarks.subjects`, with the class."""
    arguments: dict[str, Any]
    """Of the class, besides those of `training`."""
    training: Callable[[str, Any], dict[str, Any]] = plain_training
    packages: tuple[str, ...] = ()
    """What it imports that may be missing."""
    programs: tuple[str, ...] = ()
    """What it calls that may be missing."""

    @property
    def path(self) -> str:
        return f"tests.benchmarks.subjects.{self.module}"

    @property
    def is_installed(self) -> bool:
        return all(map(find_spec, self.packages)) and all(map(which, self.programs))

    def arguments_for(self, env_id: str, sizes: Any) -> dict[str, Any]:
        """Arguments of the class for a training of our sizes."""
        return {**self.training(env_id, sizes), **self.arguments}


def _cleanrl(envs: str, *, compiled: bool, packages: tuple[str, ...] = ()) -> Peer:
    return Peer(
        "cleanrl:CleanRLTraining",
        {"envs": envs, "compiled": compiled},
        packages=packages,
        programs=("g++",) if compiled else (),  # of torch's compiler
    )


def _sbx(vec_env: str, *packages: str) -> Peer:
    needs = ("stable_baselines3", "sb3_contrib", "sbx", *packages)
    return Peer("sbx:SBXTraining", {"vec_env": vec_env}, ppo_training, needs)


PEERS = {
    "CleanRL": _cleanrl("sync", compiled=False),
    "CleanRL, EnvPool": _cleanrl("envpool", compiled=False, packages=("envpool",)),
    "CleanRL compiled": _cleanrl("sync", compiled=True),
    "CleanRL compiled, EnvPool": _cleanrl("envpool", compiled=True, packages=("envpool",)),
    "SBX": _sbx("dummy"),
    "SBX, EnvPool": _sbx("envpool", "envpool"),
    "RLlib": Peer("rllib:RLlibTraining", {"num_env_runners": NUM_WORKERS}),
}


def peer_candidates(
    stack: ExitStack, open_subject: OpenSubject, iterations: int, env_id: str, sizes: Any
) -> dict[str, Callable[[], float]]:
    """By installed peer, a function that trains on and returns env steps a second.

    Args:
        stack: closes them.
        open_subject: opens them.
        iterations: of one measurement.
        env_id: of gymnasium; there is no peer outside `ENVIRONMENTS`.
        sizes: see `plain_training`.
    """
    if env_id not in ENVIRONMENTS:
        return {}
    opened = {
        name: stack.enter_context(open_subject(peer.path, **peer.arguments_for(env_id, sizes)))
        for name, peer in PEERS.items()
        if peer.is_installed
    }
    return {name: partial(subject.train, iterations) for name, subject in opened.items()}


Rates = dict[str, list[float]]
"""By candidate, env steps a second of every repeat."""


def peer_tables(rates: dict[str, Rates], ours: Sequence[str]) -> list[Table]:
    """The fastest of theirs, then each of them; nothing if no peer was measured.

    Args:
        rates: by environment; Stable-Baselines3 may be among the candidates, too.
        ours: names of our candidates; those that were measured nowhere are left out.
    """
    rates = {env_id: each for env_id, each in rates.items() if PEERS.keys() & each}
    if not rates:
        return []
    ours = [name for name in ours if any(name in each for each in rates.values())]
    multiples = [f"{name} / theirs" for name in ours]
    return [
        Table(
            "Training against the fastest of other public implementations (env steps/s)",
            ("environment", *ours, "fastest of theirs", "theirs", *multiples),
            [_fastest_row(env_id, each, ours) for env_id, each in rates.items()],
            "The same sizes. Of Stable-Baselines3 and the implementations in the next table.",
        ),
        Table(
            "Training against each of other public implementations",
            ("environment", "theirs", "env steps/s", *multiples),
            [
                (env_id, name, f"{median(each[name]):,.0f}", *_multiples(each, ours, name))
                for env_id, each in rates.items()
                for name in PEERS
                if name in each
            ],
            f"CleanRL: a loop of our own in its manner, with gymnasium's SyncVectorEnv or EnvPool; "
            f"compiled: `torch.compile` for the policy and the whole update. SBX: "
            f"Stable-Baselines3's PPO in JAX, with DummyVecEnv or EnvPool. RLlib: its own PPO, new "
            f"API stack, {NUM_WORKERS} rollout workers. EnvPool has 2 threads.",
        ),
    ]


def _fastest_row(env_id: str, rates: Rates, ours: Sequence[str]) -> tuple[str, ...]:
    fastest = best({name: values for name, values in rates.items() if name not in ours})
    speeds = [f"{median(rates[name]):,.0f}" if name in rates else "–" for name in ours]
    theirs = f"{median(rates[fastest]):,.0f}"
    return (env_id, *speeds, fastest, theirs, *_multiples(rates, ours, fastest))


def _multiples(rates: Rates, ours: Sequence[str], theirs: str) -> list[str]:
    return [str(ratio(rates[name], rates[theirs])) if name in rates else "–" for name in ours]
