"""Actors that remember, where the last observation does not say enough.

    python -m tests.learning.memory                trains what is missing, then draws
    python -m tests.learning.memory --parallel 0   draws the tables and the figure again

The record is docs/results/memory.json; tables and figure are in docs/results/memory.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tests.learning import training
from tests.learning.training import Flat, Job, Results

RAW = training.ROOT / "docs" / "results" / "memory.json"
PAGE, FIGURE = RAW.with_suffix(".md"), RAW.with_suffix(".png")
MARKS = ("<!-- tables of tests.learning.memory -->\n", "<!-- end of the tables -->\n")
SEEDS = (100, 200, 300, 400, 500)

COMMON: Flat = {
    "resources.num_env_runners": 0,
    "stop.iterations": None,
    "evaluation.final_num_episodes": 20,
    "tracking.tensorboard": False,
}
FROM_SCALES: Flat = {"env.observation_filter": "MeanStdFilter", "env.normalize_returns": True}

# What acts, and what estimates the values.
NONE, CRITIC = "MLP | MLP", "MLP | GPT-2"
STACK, STACK_CRITIC, GPT2 = "stack | MLP", "stack | GPT-2", "GPT-2 | GPT-2"
OF_MLP: Flat = {"model.name": "mlp"}
OF_GPT2: Flat = {
    "model.name": "gpt2_critic",
    "model.hidden_sizes": [64, 64],
    "model.activation": "tanh",
    "model.activate_last": True,
}
REMEMBERS: Flat = {"model.actor_net": "stack"}
VARIANTS: dict[str, Flat] = {
    NONE: OF_MLP,
    CRITIC: OF_GPT2,
    STACK: {**OF_MLP, **REMEMBERS},
    STACK_CRITIC: {**OF_GPT2, **REMEMBERS},
    GPT2: {**OF_GPT2, "model.actor_net": "gpt2"},
}


COLORS = {"MLP": "tab:gray", "stack": "tab:orange", "GPT-2": "tab:blue"}


class Task(NamedTuple):
    """An environment, how it is learned, and with what."""

    env: str
    settings: Flat
    variants: dict[str, Flat]
    context_length: int = 8
    """K of actors and critics, unless a variant has its own."""
    decimals: int = 0
    """Of a return in the table."""


CARTPOLE, PENDULUM, LUNAR = "CartPoleNoVel-v1", "PendulumNoVel-v1", "LunarLanderNoVel-v3"
CAR, RECALL = "MountainCarContinuousNoVel-v0", "Recall-v0, N = {}"


def _recall(delay: int, context_length: int) -> Task:
    """The cue comes `delay` steps before it counts; K says how far back an actor sees."""
    lengths = {STACK: (4, context_length), GPT2: (context_length,)}
    variants = {}
    for variant, each in lengths.items():
        actor, critic = variant.split(" | ")
        for k in each:
            settings = {**VARIANTS[variant], "model.actor_context_length": k}
            variants[f"{actor}, K {k} | {critic}"] = settings
    settings = {
        "env.kwargs": {"delay": delay},
        "resources.num_envs_per_env_runner": 16,
        "stop.env_steps": 102_400,
    }
    return Task("Recall-v0", settings, variants, decimals=2)


TASKS = {
    CARTPOLE: Task(
        CARTPOLE,
        {"resources.num_envs_per_env_runner": 8, "stop.env_steps": 100_352},
        VARIANTS,
    ),
    PENDULUM: Task(
        PENDULUM,
        {
            **FROM_SCALES,
            "resources.num_envs_per_env_runner": 16,
            "algorithm.gamma": 0.95,
            "algorithm.train_batch_size": 2048,
            "algorithm.minibatch_size": 64,
            "algorithm.num_epochs": 15,
            "algorithm.critic_num_epochs": 5,
            "algorithm.actor_lr": 5e-4,
            "algorithm.lr_schedule": "linear",
            "evaluation.interval": 7,
            "evaluation.num_episodes": 50,
            "evaluation.final_num_episodes": 100,
            "stop.env_steps": 100_352,
        },
        VARIANTS,
    ),
    RECALL.format(10): _recall(10, 16),
    RECALL.format(40): _recall(40, 48),
    RECALL.format(160): _recall(160, 176),
    LUNAR: Task(
        LUNAR,
        {
            "resources.num_envs_per_env_runner": 16,
            "algorithm.gamma": 0.999,
            "algorithm.lambda_": 0.98,
            "algorithm.train_batch_size": 2048,
            "algorithm.minibatch_size": 128,
            "algorithm.num_epochs": 5,
            "algorithm.critic_num_epochs": 3,
            "algorithm.lr_schedule": "linear",
            "evaluation.interval": 50,
            "evaluation.num_episodes": 20,
            "stop.env_steps": 1_001_472,
        },
        VARIANTS,
        context_length=32,
    ),
    CAR: Task(
        CAR,
        {**FROM_SCALES, "resources.num_envs_per_env_runner": 16, "stop.env_steps": 300_032},
        {name: VARIANTS[name] for name in (NONE, STACK, GPT2)},
    ),
}


def missing(results: Results) -> list[Job]:
    """Runs that are not on record, those of the first seeds first."""
    return [
        Job(name, variant, seed)
        for seed in SEEDS
        for name, task in TASKS.items()
        for variant in task.variants
        if str(seed) not in results.get(name, {}).get(variant, {})
    ]


def settings_of(job: Job) -> Flat:
    """Of one run."""
    task, length = TASKS[job.env], {}
    variant = task.variants[job.variant]
    if "model.actor_net" in variant:
        length["model.actor_context_length"] = task.context_length
    if variant["model.name"] == "gpt2_critic":
        length["model.context_length"] = task.context_length
    return {"env.id": task.env, **COMMON, **task.settings, **length, **variant}


def read() -> Results:
    """The record."""
    return training.read(RAW)


def draw(results: Results) -> None:
    """Writes the figure, and the tables into the page."""
    training.write_between(PAGE, MARKS, tables(results))
    _draw_figure(results)


def tables(results: Results) -> str:
    """For each task, what acts and what values it, with all seeds."""
    lines = []
    for name, task in _tried(results).items():
        lines += [
            f"## {_title(name)}",
            "",
            "| actor | critic | return | seeds |",
            "|---|---|---|---|",
        ]
        for variant in task.variants:
            scores = training.scores(results, name, variant)
            mean, seeds = training.summary(scores, task.decimals)
            lines.append(f"| {variant} | {mean} | {seeds} |")
        lines.append("")
    return "\n".join(lines)


def _tried(results: Results) -> dict[str, Task]:
    return {name: task for name, task in TASKS.items() if name in results}


def _title(name: str) -> str:
    return f"{name}, {TASKS[name].settings['stop.env_steps']:,} env steps"


def _draw_figure(results: Results) -> None:
    """A panel a task, a row a variant, a dot a run, a bar at the mean."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tried = _tried(results)
    heights = [len(task.variants) for task in tried.values()]
    figure = Figure(figsize=(9, 1.0 + 0.6 * sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    panels: Any = figure.subplots(len(tried), 1, height_ratios=heights, squeeze=False)[:, 0]
    for axes, (name, task) in zip(panels, tried.items(), strict=True):
        for place, variant in enumerate(task.variants):
            scores = training.scores(results, name, variant)
            color = COLORS[variant.split(" | ")[0].split(",")[0]]
            axes.plot(scores, [place] * len(scores), "o", color=color, alpha=0.6, markersize=6)
            if scores:
                axes.plot([np.mean(scores)], [place], "|", color="black", markersize=16)
        labels = [variant.replace(" | ", ", ") for variant in task.variants]
        axes.set_yticks(range(len(labels)), labels)
        axes.set_ylim(len(task.variants) - 0.5, -0.5)
        axes.set_title(_title(name), loc="left")
        axes.grid(axis="x", alpha=0.3)
    panels[-1].set_xlabel("return of deterministic episodes of the best policy, a dot a seed")
    figure.savefig(FIGURE, dpi=110)


def main() -> None:
    draw(training.fill(RAW, missing(read()), settings_of, training.parallel_runs(__doc__)))


if __name__ == "__main__":
    main()
