"""What a longer context, more layers and longer fragments cost, and what travels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from tests.benchmarks.child import OpenSubject
from tests.benchmarks.record import Raw
from tests.benchmarks.repeats import interleaved, ratio
from tests.benchmarks.tables import Table

GOAL_TRAFFIC = 1.5
EPISODE_STEPS = 1000
NUM_EPOCHS = 2


class Shape(NamedTuple):
    """What is varied, one at a time."""

    context_length: int = 64
    n_layer: int = 2
    fragment: int = 256
    minibatch_size: int = 128

    @property
    def name(self) -> str:
        return (
            f"K {self.context_length}, {self.n_layer} layers, fragment {self.fragment}, "
            f"minibatch {self.minibatch_size}"
        )


class Sizes(NamedTuple):
    context_lengths: tuple[int, ...] = (16, 64, 128, 256, 512)
    layers: tuple[int, ...] = (1, 2, 4, 8)
    fragments: tuple[int, ...] = (64, 128, 256, 512)
    base: Shape = Shape()
    long: Shape = Shape(fragment=2048, minibatch_size=2048)
    """What contexts of different length are compared at: one that suits the longest."""
    train_batch_size: int = 2048
    repeats: int = 3

    def groups(self) -> dict[str, list[Shape]]:
        """Shapes by what distinguishes them."""
        return {
            "context_length": [self.long._replace(context_length=k) for k in self.context_lengths],
            "n_layer": [self.base._replace(n_layer=n) for n in self.layers],
            "fragment": [self.base._replace(fragment=f) for f in self.fragments],
        }


QUICK = Sizes(
    (4, 8),
    (1, 2),
    (32, 64),
    Shape(8, 2, 32, 32),
    Shape(8, 2, 64, 64),
    train_batch_size=64,
    repeats=1,
)


def measure(open_subject: OpenSubject, quick: bool) -> Raw:
    """Learner seconds per env step of every repeat, by group and value; bytes per env step."""
    sizes = QUICK if quick else Sizes()
    groups = sizes.groups()
    shapes = {shape for group in groups.values() for shape in group}
    variants = {shape.name: _variant(shape, sizes) for shape in shapes}
    variants["mlp"] = variants[sizes.base.name] | {"model": {"name": "mlp"}}
    with open_subject("tests.benchmarks.subjects.traffic:Traffic", variants=variants) as subject:
        for name in variants:
            subject.fill(name, max(sizes.context_lengths))
        return {
            "base": sizes.base._asdict(),
            "long": sizes.long._asdict(),
            "learning": {
                what: _measure_group(subject, what, group, sizes.repeats)
                for what, group in groups.items()
            },
            "traffic": {
                name: {
                    **subject.batch_bytes(name, sizes.base.fragment),
                    "weights": subject.weight_bytes(name),
                }
                for name in ("mlp", sizes.base.name)
            },
        }


def _measure_group(subject: Any, what: str, group: list[Shape], repeats: int) -> Raw:
    candidates: dict[str, Callable[[], float]] = {
        str(getattr(shape, what)): partial(_learn_seconds, subject, shape.name) for shape in group
    }
    return interleaved(candidates, repeats, warmups=1)


def _learn_seconds(subject: Any, name: str) -> float:
    seconds: float = subject.train(name, 1)["learn_s_per_step"]
    return seconds


def _variant(shape: Shape, sizes: Sizes) -> dict[str, Any]:
    return {
        "env": {"id": "Pendulum-v1", "max_episode_steps": EPISODE_STEPS},
        "model": {
            "name": "gpt2_critic",
            "context_length": shape.context_length,
            "n_layer": shape.n_layer,
            "history_actions": True,
        },
        "algorithm": {
            "train_batch_size": sizes.train_batch_size,
            "minibatch_size": shape.minibatch_size,
            "num_epochs": NUM_EPOCHS,
        },
        "resources": {
            "num_env_runners": 0,
            "num_envs_per_env_runner": sizes.train_batch_size // shape.fragment,
        },
    }


def tables(raw: Raw) -> list[Table]:
    """One table a dimension, and the traffic."""
    titles = {
        "context_length": "Cost against context length K (K 64 → 512: goal at most 3)",
        "n_layer": "Cost against layers",
        "fragment": "Cost against fragment length",
    }
    return [
        *(
            _cost_table(
                titles[what], what, samples, raw["long" if what == "context_length" else "base"]
            )
            for what, samples in raw["learning"].items()
        ),
        _traffic_table(raw["traffic"], raw["base"]),
    ]


def _cost_table(title: str, what: str, samples: Raw, base: Raw) -> Table:
    others = ", ".join(f"{name} {value}" for name, value in base.items() if name != what)
    reference = samples[str(base[what])]
    return Table(
        title,
        (what, "learner, µs per env step", f"of {what} {base[what]}"),
        [
            (value, f"{1e6 * median(seconds):.0f}", str(ratio(seconds, reference)))
            for value, seconds in samples.items()
        ],
        f"The whole learner: values, advantages, {NUM_EPOCHS} epochs of actor and critic. "
        f"Pendulum-v1 with {EPISODE_STEPS}-step episodes, so that contexts are full; {others}.",
    )


def _traffic_table(traffic: Raw, base: Raw) -> Table:
    return Table(
        f"Bytes per env step from worker to learner (goal: at most {GOAL_TRAFFIC} × plain)",
        ("critic", "plain columns", "shipped", "shipped / plain", "weights to a worker, bytes"),
        [
            (
                name,
                f"{each['plain']:.0f}",
                f"{each['shipped']:.1f}",
                f"{each['shipped'] / each['plain']:.2f}",
                f"{each['weights']:,}",
            )
            for name, each in traffic.items()
        ],
        f"Pickle protocol 5 with buffers, as Ray stores them; fragment {base['fragment']}. Plain: "
        f"the same columns, one row per env step. Weights travel once an iteration.",
    )
