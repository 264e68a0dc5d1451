"""The table, the ranking, the figures."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from rl_service.config.load import load_settings
from rl_service.tuning.outcome import (
    best_preset,
    draw_figures,
    pareto_front,
    results_table,
)
from rl_service.tuning.plan import TuningPlan
from rl_service.tuning.trial_view import TrialView, ranked
from tests.support.tuning import small_plan


def trial(name: str, best: float | None, **changed: Any) -> TrialView:
    values = {"algorithm.actor_lr": 1e-3 if best is None else 1e-4 + best * 1e-5}
    given: dict[str, Any] = {
        "status": "finished",
        "values": values,
        "env_steps": 192,
        "score": best,
        "best_score": best,
        "env_steps_per_s": 100.0,
        "time_s": 3.0,
    }
    return TrialView(name, **(given | changed))


def plan(folder: Path, *objectives: str) -> TuningPlan:
    return small_plan(folder, search_alg={"objectives": list(objectives or ("score",))})


def test_failed_trials_are_last_whatever_their_score(tmp_path: Path) -> None:
    trials = [
        trial("nothing", None, status="waiting"),
        trial("failed", 99.0, status="failed", error="it became NaN"),
        trial("collapsed", 30.0, score=3.0, time_s=1.0),
        trial("slow", 30.0, time_s=9.0),
        trial("fast", 30.0),
        trial("early", 10.0),
    ]
    order = ["fast", "slow", "collapsed", "early", "nothing", "failed"]
    assert [one.trial_id for one in ranked(trials)] == order
    table = results_table(plan(tmp_path), trials)
    rows = list(csv.DictReader(table.splitlines()))
    assert [row["trial"] for row in rows] == order
    assert rows[0]["pareto"] == "yes"
    assert rows[0]["algorithm.actor_lr"] == str(1e-4 + 30.0 * 1e-5)
    assert rows[-1]["error"] == "it became NaN"


def test_the_front_holds_what_nothing_beats_in_both_objectives(tmp_path: Path) -> None:
    trials = [
        trial("best", 90.0, env_steps_per_s=10.0),
        trial("fastest", 10.0, env_steps_per_s=99.0),
        trial("between", 50.0, env_steps_per_s=50.0),
        trial("beaten", 40.0, env_steps_per_s=50.0),
        trial("failed", 95.0, env_steps_per_s=100.0, status="failed"),
    ]
    both = plan(tmp_path, "score", "env_steps_per_s")
    assert pareto_front(both, trials) == {"best", "fastest", "between"}
    assert pareto_front(plan(tmp_path), trials) == {"best"}


def test_a_best_score_of_zero_is_a_score(tmp_path: Path) -> None:
    assert pareto_front(plan(tmp_path), [trial("zero", 0.0), trial("below", -5.0)]) == {"zero"}


def test_the_preset_trains_the_best_settings(tmp_path: Path) -> None:
    searched = plan(tmp_path)
    best = trial("best", 90.0)
    settings = searched.space.settings(best.values, seed=4)
    (tmp_path / "best.yaml").write_text(best_preset(settings, "runs/x", best))
    loaded = load_settings(config=tmp_path / "best.yaml").settings
    assert loaded.algorithm == settings.algorithm
    assert (loaded.seed, loaded.tracking.output_dir) == (4, ".")


def test_figures_want_trials_that_differ(tmp_path: Path) -> None:
    searched = plan(tmp_path)
    few = [trial("a", 1.0), trial("b", 2.0)]
    with pytest.raises(ValueError, match="need 4 trials with scores, and there are 2"):
        draw_figures(searched, few)
    same = [trial(name, 1.0) for name in "abcd"]
    with pytest.raises(ValueError, match="the same score"):
        draw_figures(searched, same)
    differing = [trial(str(score), float(score)) for score in range(6)]
    figures = draw_figures(searched, differing)
    assert sorted(figures) == ["importance.png", "parallel_coordinates.png"]
    assert all(content.startswith(b"\x89PNG") for content in figures.values())
