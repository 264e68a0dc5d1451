"""What matters with a GPT-2 critic: trainings of one process each, many side by side.

    python -m tests.learning.critics                trains what is missing, then draws
    python -m tests.learning.critics --parallel 0   draws the table and the figure again

The record is docs/results/critics.json; the table is in docs/gpt2_critic.md, the figure beside the
record. Trainings that find a Ray at `RAY_ADDRESS` share it; else each starts its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tests.learning import training
from tests.learning.training import Flat, Job, Results

DOCS = training.ROOT / "docs"
RAW = DOCS / "results" / "critics.json"
FIGURE = RAW.with_suffix(".png")
PAGE = DOCS / "gpt2_critic.md"
MARKS = ("<!-- table of tests.learning.critics -->\n", "<!-- end of the table -->\n")
VARIANT = "tests.learning.critic_variants:"

COMMON: Flat = {
    "algorithm.train_batch_size": 2048,
    "algorithm.minibatch_size": 128,
    "algorithm.num_epochs": 5,
    "algorithm.critic_num_epochs": 3,
    "algorithm.actor_lr": 3e-4,
    "algorithm.critic_lr": 1e-3,
    "algorithm.entropy_coeff": 0.0,
    "model.hidden_sizes": [64, 64],
    "model.activation": "tanh",
    "model.activate_last": True,
    "resources.num_env_runners": 0,
    "resources.num_envs_per_env_runner": 16,
    "stop.iterations": None,
    "evaluation.interval": 10,
    "evaluation.num_episodes": 10,
    "evaluation.final_num_episodes": 20,
    "tracking.tensorboard": False,
}


class Task(NamedTuple):
    """An environment, and what differs there from `COMMON`."""

    settings: Flat
    seeds: int
    """How many each critic is trained with; the default and the MLP with more."""
    most_seeds: int


LUNAR, ACROBOT = "LunarLander-v3", "Acrobot-v1"
NORMALISED = {"env.observation_filter": "MeanStdFilter", "env.normalize_returns": True}
TASKS = {
    LUNAR: Task(
        {"algorithm.gamma": 0.999, "algorithm.lambda_": 0.98, "stop.env_steps": 327_680},
        seeds=8,
        most_seeds=10,
    ),
    ACROBOT: Task(
        {
            **NORMALISED,
            "algorithm.gamma": 0.99,
            "algorithm.lambda_": 0.94,
            "stop.env_steps": 153_600,
        },
        seeds=4,
        most_seeds=20,
    ),
    "Pendulum-v1": Task(
        {
            **NORMALISED,
            "algorithm.gamma": 0.9,
            "algorithm.lambda_": 0.95,
            "algorithm.actor_lr": 1e-3,
            "algorithm.num_epochs": 10,
            "stop.env_steps": 102_400,
        },
        seeds=4,
        most_seeds=4,
    ),
}
GPT2: Flat = {
    "model.name": "gpt2_critic",
    "model.context_length": 8,
    "model.attention": "banded",
    "model.time": "relative",
    "model.history_actions": False,
    "model.n_layer": 1,
    "model.n_head": 8,
    "model.n_embd": 64,
    "model.dropout": 0.0,
}


def gpt2(algorithm: Flat | None = None, **model: Any) -> Flat:
    """The default critic with changes."""
    changed = {f"model.{key}": value for key, value in model.items()}
    return {**GPT2, **changed, **{f"algorithm.{k}": v for k, v in (algorithm or {}).items()}}


def with_actions(algorithm: Flat | None = None, **model: Any) -> Flat:
    return gpt2(algorithm, history_actions=True, **model)


MLP, DEFAULT = "MLP", "default"
COMPARED = ((LUNAR, 10), (ACROBOT, 10), (ACROBOT, 20))
"""Environments, and how many of the first seeds are compared."""
OF_TIME = (MLP, DEFAULT, "time: none", "time: absolute")
CRITICS: dict[str, Flat] = {
    MLP: {"model.name": "mlp", "model.critic_hidden_sizes": [64, 64]},
    DEFAULT: gpt2(),
    "K 1": with_actions(context_length=1),
    "K 4": gpt2(context_length=4),
    "K 16": gpt2(context_length=16),
    "K 32": gpt2(context_length=32),
    "time: none": gpt2(time="none"),
    "time: absolute": gpt2(time="absolute"),
    "2 layers": gpt2(n_layer=2),
    "2 layers, the first looks back": gpt2(n_layer=2, name=VARIANT + "FirstLayer"),
    "2 layers, the last looks back": gpt2(n_layer=2, name=VARIANT + "LastLayer"),
    "actions": with_actions(),
    "actions, K 4": with_actions(context_length=4),
    "actions, K 16": with_actions(context_length=16),
    "actions, time: none": with_actions(time="none"),
    "actions, time: absolute": with_actions(time="absolute"),
    "actions, minibatch of one stretch": with_actions({"name": VARIANT + "OneStretch"}),
    "actions, minibatch 256": with_actions({"critic_minibatch_size": 256}),
    "actions, 5 passes": with_actions({"critic_num_epochs": 5}),
    "actions, critic_lr 3e-4": with_actions({"critic_lr": 3e-4}),
    "actions, warm-up": with_actions({"name": VARIANT + "WarmUp"}),
    "actions, MLP beside, head from zero": with_actions(name=VARIANT + "Shortcut"),
    "actions, half of the chunks alone": with_actions(name=VARIANT + "Forgetful"),
}


def missing(results: Results) -> list[Job]:
    """Runs that are not on record, those of the first seeds first."""
    jobs = []
    for number in range(1, 1 + max(task.most_seeds for task in TASKS.values())):
        for env, task in TASKS.items():
            for critic in CRITICS:
                wanted = task.most_seeds if critic in (MLP, DEFAULT) else task.seeds
                if env == "Pendulum-v1" and critic not in OF_TIME:
                    wanted = 0
                job = Job(env, critic, 100 * number)
                if number <= wanted and str(job.seed) not in results.get(env, {}).get(critic, {}):
                    jobs.append(job)
    return jobs


def settings_of(job: Job) -> Flat:
    """Of one run."""
    return {**COMMON, **TASKS[job.env].settings, **CRITICS[job.variant]}


def read() -> Results:
    """The record."""
    return training.read(RAW)


def draw(results: Results) -> None:
    """Writes the figure, and the table into its page."""
    training.write_between(PAGE, MARKS, table(results))
    _draw_figure(results)


def table(results: Results) -> str:
    """The critics with all their seeds; how the default compares; leads; time in three tasks."""
    whole = [critic for critic in CRITICS if _is_whole(results, critic)]
    leads = [c for c in CRITICS if c not in whole and len(results[LUNAR].get(c, {})) > 1]
    lines = [*_rows(results, whole), "", f"{DEFAULT} minus {MLP}, ± standard error:", ""]
    lines += [f"- {_difference(results, env, seeds)}" for env, seeds in COMPARED]
    if leads:
        lines += ["", "Leads, with too few seeds to rely on:", "", *_rows(results, leads)]
    lines += ["", f"| time | {' | '.join(TASKS)} |", "|---|---|---|---|"]
    for critic in OF_TIME:
        scores_of = [training.scores(results, env, critic) for env in TASKS]
        cells = [f"{training.summary(scores)[0]} ({len(scores)} seeds)" for scores in scores_of]
        lines.append("| " + " | ".join([critic, *cells]) + " |")
    return "\n".join(lines) + "\n"


def _is_whole(results: Results, critic: str) -> bool:
    return all(len(results[e].get(critic, {})) >= TASKS[e].seeds for e in (LUNAR, ACROBOT))


def _rows(results: Results, critics: list[str]) -> list[str]:
    """A row for each critic: the mean, the single seeds in order, and how many failed."""
    lines = [
        f"| critic | {LUNAR} | seeds | under 200 | at the end | {ACROBOT} | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for critic in critics:
        runs, scores = (
            training.runs(results, LUNAR, critic),
            training.scores(results, LUNAR, critic),
        )
        failed = sum(score < 200.0 for score in scores)
        last = np.mean([run["training_return"] for run in runs])
        cells = [critic, *training.summary(scores), str(failed), f"{last:.0f}"]
        cells += training.summary(training.scores(results, ACROBOT, critic))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _difference(results: Results, env: str, seeds: int) -> str:
    ours, theirs = (training.scores(results, env, critic)[:seeds] for critic in (DEFAULT, MLP))
    error = np.sqrt(sum(np.var(scores, ddof=1) / len(scores) for scores in (ours, theirs)))
    return f"{env}, {len(ours)} seeds: {np.mean(ours) - np.mean(theirs):.1f} ± {error:.1f}"


def _draw_figure(results: Results) -> None:
    """A dot a run, a bar at the mean; two panels that share their rows."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7.5), layout="constrained")
    FigureCanvasAgg(figure)
    rows = [critic for critic in CRITICS if _is_whole(results, critic)]
    panels: Any = figure.subplots(1, 2, sharey=True)
    for axes, env in zip(panels, (LUNAR, ACROBOT), strict=True):
        for place, critic in enumerate(rows):
            scores = training.scores(results, env, critic)
            color = {MLP: "tab:gray", DEFAULT: "tab:blue"}.get(critic, "tab:orange")
            axes.plot(scores, [place] * len(scores), "o", color=color, alpha=0.5, markersize=5)
            axes.plot([np.mean(scores)], [place], "|", color="black", markersize=14)
        axes.set_title(f"{env}, {TASKS[env].settings['stop.env_steps']:,} env steps")
        axes.set_xlabel("return of 20 deterministic episodes, a dot a seed")
        axes.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(rows)), rows)
    panels[0].invert_yaxis()
    panels[1].set_xlim(-130, -60)
    figure.savefig(FIGURE, dpi=110)


def main() -> None:
    draw(training.fill(RAW, missing(read()), settings_of, training.parallel_runs(__doc__)))


if __name__ == "__main__":
    main()
