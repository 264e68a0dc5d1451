"""What a tuning experiment shows, on a terminal and in a pipe."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rl_service.cli.tune_display import TuneDisplay
from rl_service.tuning.observer import TuneResult
from rl_service.tuning.trial_view import TrialView
from tests.support.tuning import small_plan


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def trial(name: str, **changed: Any) -> TrialView:
    given: dict[str, Any] = {
        "status": "running",
        "values": {"algorithm.actor_lr": 0.00123456},
        "env_steps": 12_800,
        "score": 98.76,
        "best_score": 123.45,
        "env_steps_per_s": 4_321.0,
        "time_s": 75.0,
    }
    return TrialView(name, **(given | changed))


WAITING = trial("aaaa", status="waiting", env_steps=None, score=None, best_score=None, time_s=None)
RESULT = TuneResult(
    experiment="/runs/x",
    status="finished",
    trials=2,
    failed=1,
    env="CartPole-v1",
    algo="ppo",
    model="mlp",
    seed=3,
    best_trial="aaaa",
    best_values={"algorithm.actor_lr": 0.00123456},
    best_score=123.45,
    episodes=20,
    episode_return_mean=120.0,
    episode_return_std=4.5,
    env_steps=25_600,
    policy="checkpoints/x",
    registered="cartpole-v1-mlp-ppo:2",
    preset="/runs/x/report/best.yaml",
)


def test_a_pipe_gets_a_line_for_each_change_and_none_for_the_rest(tmp_path: Path) -> None:
    out = io.StringIO()
    with TuneDisplay(out) as progress:
        progress.on_start(small_plan(tmp_path, num_seeds=2), "/runs/x", 2)
        progress.on_trials([WAITING])
        for _ in range(3):
            progress.on_trials([trial("aaaa", env_steps=None)])
        for _ in range(3):
            progress.on_trials([trial("aaaa")])
        progress.on_message("trial bbbb failed: it became NaN")
    lines = out.getvalue().splitlines()
    assert lines == [
        "Tuning mlp with ppo on CartPole-v1: 2 trials x 2 seeds, 2 at a time, search tpe, "
        "scheduler none",
        "/runs/x",
        "aaaa  starts      actor_lr 0.001235",
        "aaaa  running            12,800 steps      98.8   best    123.5",
        "trial bbbb failed: it became NaN",
    ]


def test_of_an_experiment_that_is_resumed_only_what_runs_is_said_to_continue() -> None:
    out = io.StringIO()
    trials = [trial("done", status="finished"), trial("half"), trial("lost", status="failed")]
    TuneDisplay(out).on_trials([*trials, WAITING, trial("new", env_steps=None)])
    assert out.getvalue().splitlines() == [
        "done  finished           12,800 steps      98.8   best    123.5",
        "half  continues   actor_lr 0.001235",
        "lost  failed             12,800 steps      98.8   best    123.5",
        "new  starts      actor_lr 0.001235",
    ]


def test_a_pipe_gets_whole_values_under_names_that_tell_them_apart(tmp_path: Path) -> None:
    out = io.StringIO()
    values = {f"algorithm.a_setting_of_a_long_name_{i}": 2.287e-05 for i in range(9)}
    values |= {"model.name": "gpt2_critic", "algorithm.name": "ppo"}
    TuneDisplay(out).on_finish(RESULT, [trial("aaaa", values=values)])
    heading, row = out.getvalue().splitlines()[:2]
    assert row.split().count("2.287e-05") == 9
    assert {"a_setting_of_a_long_name_8", "model.name", "algorithm.name"} <= set(heading.split())
    assert "…" not in out.getvalue()


def test_a_population_names_no_searcher(tmp_path: Path) -> None:
    out = io.StringIO()
    population = small_plan(tmp_path, scheduler={"name": "pbt", "interval_env_steps": 64})
    TuneDisplay(out).on_start(population, "/runs/x", 2)
    assert "2 at a time, search random at first, scheduler pbt" in out.getvalue()


def test_a_terminal_shows_the_best_trial_first_and_the_result_below(tmp_path: Path) -> None:
    out = Terminal()
    with TuneDisplay(out) as progress:
        progress.on_start(small_plan(tmp_path), "/runs/x", 2)
        trials = [trial("worse", best_score=1.0), trial("better"), trial("lost", status="failed")]
        progress.on_trials(trials)
        progress.on_finish(RESULT, trials)
    shown = out.getvalue()
    assert shown.index("better ") < shown.index("worse ")
    for words in (
        "2 trials, 1 failed, 25,600 env steps",
        "Best: trial aaaa, score 123.5; its best policy on 20 fresh episodes: 120.0 ± 4.5",
        "rl-service serve cartpole-v1-mlp-ppo:2",
        "rl-service train --config /runs/x/report/best.yaml",
    ):
        assert words in shown


def test_a_stopped_experiment_says_how_to_continue() -> None:
    out = io.StringIO()
    stopped = TuneResult("/runs/x", "stopped", 2, 0, "CartPole-v1", env_steps=64)
    TuneDisplay(out).on_finish(stopped, [WAITING])
    assert "rl-service tune --resume /runs/x" in out.getvalue()
    assert "Best" not in out.getvalue()
