"""What a language model learns where observations are text, beside an MLP on the same as numbers.

    python -m tests.learning.text                           trains what is missing, then draws
    python -m tests.learning.text --rows MLP --parallel 1   some of the rows
    python -m tests.learning.text --parallel 0              draws the tables and the figure again

Rows of a language model need a GPU, SmolLM2-135M (`rl-service models fetch smollm2-135m`) and
`--parallel 1`. The record is docs/results/text.json; tables and figure are in docs/results/text.md.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from custom_models.history import History
from custom_models.observation_text import PADDING
from rl_service.config.load import load_settings
from rl_service.policies import load_bundle
from rl_service.policies.bundle import BundledPolicy
from rl_service.rollout.envs import make_env
from rl_service.training.evaluation import evaluate
from tests.learning import training
from tests.learning.training import Flat, Job, Results

RAW = training.ROOT / "docs" / "results" / "text.json"
PAGE, FIGURE = RAW.with_suffix(".md"), RAW.with_suffix(".png")
MARKS = ("<!-- tables of tests.learning.text -->\n", "<!-- end of the tables -->\n")
NUM_EPISODES = 300

TASKS = {
    "FrozenLakeMaps-v1": "FrozenLake, a new map of 4 x 4 in each episode",
    "BabyAIGoToText-v0": "BabyAI, go to the object that is named",
}
COMMON: Flat = {
    "evaluation.final_num_episodes": NUM_EPISODES,
    "tracking.tensorboard": False,
}
LANGUAGE_MODEL: Flat = {
    "model.name": "llm_policy",
    "resources.num_gpus": 1,
    "resources.learner_precision": "bfloat16",
}


class Row(NamedTuple):
    """What acts; everything else is in the presets of the tasks."""

    settings: Flat
    num_seeds: int = 3

    @property
    def seeds(self) -> list[int]:
        """So far apart that no two runs are evaluated on the same episodes."""
        return [1000 * number for number in range(1, 1 + self.num_seeds)]

    @property
    def has_language_model(self) -> bool:
        return bool(self.settings["model.name"] == "llm_policy")


MLP, MLP_SHORT, HEAD, LORA = "MLP", "MLP, fewer steps", "head", "LoRA"
ZERO_SHOT, RANDOM = "zero-shot", "random weights"
ROWS = {
    MLP: Row({"model.name": "mlp"}, num_seeds=5),
    MLP_SHORT: Row({"model.name": "mlp"}, num_seeds=5),
    ZERO_SHOT: Row(
        {
            **LANGUAGE_MODEL,
            "algorithm.actor_lr": 1e-12,  # a run needs an iteration, and this one changes nothing
            "stop.iterations": 1,
            "stop.env_steps": None,
        }
    ),
    HEAD: Row(
        {
            **LANGUAGE_MODEL,
            "model.finetune": "head",
            "model.action_scoring": "head",
            "algorithm.num_epochs": 4,  # of a small net, on hidden states that are kept
        }
    ),
    LORA: Row(LANGUAGE_MODEL),
    RANDOM: Row({**LANGUAGE_MODEL, "model.random_weights": True}),
}


def missing(results: Results, rows: list[str]) -> list[Job]:
    """Runs of these rows that are not on record, those of the first seeds first."""
    return [
        Job(task, name, seed)
        for seed in ROWS[MLP].seeds
        for task in TASKS
        for name in rows
        if seed in ROWS[name].seeds and str(seed) not in results.get(task, {}).get(name, {})
    ]


def settings_of(job: Job) -> Flat:
    """Of one run; the rest is in the preset of its environment and model."""
    settings = {"env.id": job.env, **COMMON, **ROWS[job.variant].settings}
    if job.variant == MLP_SHORT:
        preset = load_settings(env=job.env, model="llm_policy", algorithm="ppo").settings
        settings["stop.env_steps"] = preset.stop.env_steps
    return settings


def measure(result: dict[str, Any]) -> dict[str, Any]:
    """Plays the layouts that training never sees with a run's best policy.

    Args:
        result: of the run.
    """
    policy = load_bundle(Path(result["policy"]))
    env = policy.spec.env
    held_out = env.model_copy(update={"kwargs": {**env.kwargs, "held_out": True}})
    played = evaluate(policy, held_out, num_episodes=NUM_EPISODES, seed=result["seed"])
    found = {
        "held_out": round(played.mean, 4),
        "env_steps": result["env_steps"],
        "minutes": round(result["env_steps"] / result["env_steps_per_s"] / 60, 1),
    }
    if not policy.spec.model.has_language_model:
        return found
    import torch

    tokens = tokens_per_step(policy)
    return found | {
        "tokens_per_step": round(tokens, 1),
        "tokens_per_s": round(tokens * result["env_steps_per_s"]),
        "machine": torch.cuda.get_device_name(),
    }


def tokens_per_step(policy: BundledPolicy) -> float:
    """Mean tokens of a prompt after the task, over the first observations of 100 episodes."""
    with closing(make_env(policy.spec.env)) as env:
        obs = np.stack([env.reset(seed=seed)[0] for seed in range(100)])
    history = History.first_steps(obs, policy.actor.context_length, policy.action_spec)
    writer: Any = policy.actor.writer
    prompts = writer.prompts(history)
    return float((prompts != PADDING).sum(axis=1).mean())


def read() -> Results:
    """The record."""
    return training.read(RAW)


def draw(results: Results) -> None:
    """Writes the figure, and the tables into the page."""
    training.write_between(PAGE, MARKS, tables(results))
    _draw_figure(results)


def tables(results: Results) -> str:
    """For each task, what acts, with all seeds; then what training a language model brings."""
    lines = []
    for task, title in TASKS.items():
        lines += [
            f"## {title}",
            "",
            "| actor | held-out layouts | seeds | layouts of training | env steps | minutes "
            "| tokens/s | on |",
            "|---|---|---|---|---|---|---|---|",
            *(_line(results, task, row) for row in ROWS),
            "",
            *(f"- {comparison(results, task, other)}" for other in (ZERO_SHOT, RANDOM)),
            "",
        ]
    return "\n".join(lines)


def _line(results: Results, task: str, row: str) -> str:
    runs = training.runs(results, task, row)
    if not runs:
        return f"| {row} | not measured |  |  |  |  |  |  |"
    mean, seeds = training.summary(_held_out(results, task, row), decimals=3)
    tokens = [run["tokens_per_s"] for run in runs if "tokens_per_s" in run]
    cells = [
        row,
        mean,
        seeds,
        f"{np.mean(training.scores(results, task, row)):.3f}",
        "none" if row == ZERO_SHOT else f"{runs[0]['env_steps']:,}",
        "none" if row == ZERO_SHOT else f"{np.mean([run['minutes'] for run in runs]):.1f}",
        f"{np.mean(tokens):,.0f}" if tokens else "–",
        "; ".join(sorted({run["machine"] for run in runs})),
    ]
    return "| " + " | ".join(cells) + " |"


def comparison(results: Results, task: str, other: str) -> str:
    """Whether LoRA succeeds more often than another row, by more than two standard errors."""
    ours, theirs = (_held_out(results, task, row) for row in (LORA, other))
    if min(len(ours), len(theirs)) < 2:
        return f"{LORA} minus {other}: not measured"
    error = np.sqrt(sum(np.var(scores, ddof=1) / len(scores) for scores in (ours, theirs)))
    lead = np.mean(ours) - np.mean(theirs)
    verdict = "more" if lead > 2 * error else "**not** more"
    return f"{LORA} minus {other}: {lead:.3f} ± {error:.3f}, {verdict} than two standard errors"


def _held_out(results: Results, task: str, row: str) -> list[float]:
    return [run["held_out"] for run in training.runs(results, task, row)]


def _draw_figure(results: Results) -> None:
    """A panel a task, a row an actor, a dot a run, a bar at the mean."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels: Any = figure.subplots(len(TASKS), 1, sharex=True)
    for axes, (task, title) in zip(panels, TASKS.items(), strict=True):
        for place, (name, row) in enumerate(ROWS.items()):
            scores = _held_out(results, task, name)
            color = "tab:blue" if row.has_language_model else "tab:gray"
            axes.plot(scores, [place] * len(scores), "o", color=color, alpha=0.6, markersize=6)
            if scores:
                axes.plot([np.mean(scores)], [place], "|", color="black", markersize=16)
        axes.set_yticks(range(len(ROWS)), list(ROWS))
        axes.set_ylim(len(ROWS) - 0.5, -0.5)
        axes.set_xlim(-0.02, 1.02)
        axes.set_title(title, loc="left")
        axes.grid(axis="x", alpha=0.3)
    panels[-1].set_xlabel("success rate on held-out layouts, a dot a seed")
    figure.savefig(FIGURE, dpi=110)


def main() -> None:
    parser = training.parser(__doc__)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    given = parser.parse_args()
    jobs = missing(read(), given.rows)
    draw(training.fill(RAW, jobs, settings_of, given.parallel, measure))


if __name__ == "__main__":
    main()
