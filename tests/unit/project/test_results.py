"""The queue of experiments is well formed, and the results page is what is on record."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_service.common.metrics import ENV_STEPS
from rl_service.training.checks import check_settings
from tests.learning import experiments, queue, record, results, training
from tests.learning.queue import NUM_EPISODES, Figure, Queue, Row

QUEUE = queue.read()
ROWS = QUEUE.rows


def make_row(**more: Any) -> Row:
    given = {"name": "row", "title": "Row", "config": "tuned/CartPole-v1_mlp"}
    return Row.model_validate({**given, "seeds": [100, 200], "minutes": 1, **more})


def make_queue(*rows: Row) -> Queue:
    return Queue.model_validate({"sections": [{"title": "Part", "rows": rows}]})


def a_record(row: Row, seed: int, *returns: float, **more: Any) -> record.Record:
    return {
        "settings": queue.decisive(row.settings(seed)),
        "evaluation_seed": row.evaluation_seed,
        "machine": "a machine",
        "env_steps": 1024,
        "minutes": 2.0,
        "returns": returns,
        **more,
    }


def test_the_results_page_is_made_of_the_records() -> None:
    shown = training.read_between(results.PAGE, results.MARKS)
    assert shown == results.tables(QUEUE, results.read(QUEUE))


def test_every_figure_of_the_page_is_there_and_every_record_has_its_row() -> None:
    drawn = [line for line in results.PAGE.read_text("utf-8").splitlines() if line[:2] == "!["]
    assert all((results.FOLDER / line[line.index("](") + 2 : -1]).exists() for line in drawn)
    files = {path.parent.name for path in record.RUNS.glob("*/*")}
    assert files <= ROWS.keys()


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_the_settings_of_a_row_work(row: Row) -> None:
    settings = row.settings(row.seeds[0])
    assert settings.resources.num_env_runners == 0
    if settings.resources.num_gpus == 0:  # else load_settings has checked what it can
        assert check_settings(settings) == []


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_no_two_evaluations_of_a_row_share_an_episode(row: Row) -> None:
    finals = [row.evaluation_seed] if row.evaluation_seed else list(row.seeds)
    choosing = [seed + 1_000_000 for seed in row.seeds]  # those that pick the best policy
    for first, second in combinations([*finals, *choosing], 2):
        assert abs(first - second) >= 100 >= NUM_EPISODES
    assert all(abs(a - b) >= 100 for a, b in combinations(row.seeds, 2))


@pytest.mark.parametrize("row", [row for row in ROWS.values() if row.public], ids=lambda r: r.name)
def test_a_row_has_no_more_steps_than_the_public_run_and_enough_seeds(row: Row) -> None:
    settings, public = row.settings(row.seeds[0]), row.public
    steps, batch = settings.stop.env_steps, settings.algorithm.train_batch_size
    assert public is not None and steps is not None
    if public.env_steps is not None:
        assert public.env_steps - batch < steps <= public.env_steps
    assert len(row.seeds) >= (5 if row.minutes < 10 else 3)


def test_titles_are_unique_and_what_rows_and_figures_name_exists() -> None:
    rows = [row for section in QUEUE.sections for row in section.rows]
    assert len({row.title for row in rows}) == len({row.name for row in rows}) == len(rows)
    figures = [figure for section in QUEUE.sections for figure in section.figures]
    known = {*record.COLUMNS, record.EPISODES, record.PER_EPISODES}
    for figure in figures:
        assert set(figure.lines.values()) <= ROWS.keys()
        assert figure.over in results.X_LABELS and set(figure.panels) <= known
    for row in rows:
        if row.level_with is not None:
            ours, theirs = (r.settings(r.seeds[0]) for r in (row, ROWS[row.level_with]))
            assert ours.env.id == theirs.env.id
            assert ours.total_env_steps == theirs.total_env_steps


def test_a_run_takes_whole_batches_in_one_process_with_the_environments_of_its_preset() -> None:
    row = make_row(env_steps=1500, set={"algorithm.gamma": 0.9})
    assert row.command() == (
        "rl-service train --config tuned/CartPole-v1_mlp --set algorithm.gamma=0.9 "
        "--set resources.num_env_runners=0 --set resources.num_envs_per_env_runner=16 "
        "--set stop.env_steps=1024 --seed SEED"
    )
    settings = row.settings(7)
    assert (settings.seed, settings.algorithm.gamma, settings.total_env_steps) == (7, 0.9, 1024)


def test_a_record_counts_only_with_the_settings_of_today(tmp_path: Path) -> None:
    row = make_row()
    record.write(row, 100, a_record(row, 100, 1.0, 3.0), tmp_path)
    assert list(record.read_all(row, tmp_path)) == [100]
    changed = (make_row(set={"algorithm.gamma": 0.5}), make_row(evaluation_seed=5))
    assert [record.read_all(other, tmp_path) for other in changed] == [{}, {}]


def test_missing_runs_are_begun_ones_then_first_seeds_then_short_ones(tmp_path: Path) -> None:
    long, short = make_row(minutes=9), make_row(name="short", title="Short")
    begun = tmp_path / "work" / "row" / "200" / "runs" / "experiment" / "id"
    begun.mkdir(parents=True)
    (begun / "config.yaml").touch()
    runs = tmp_path / "runs"
    record.write(short, 200, a_record(short, 200, 1.0), runs)
    rows = make_queue(long, short)
    jobs = experiments.missing(rows, "*", runs, tmp_path / "work")
    assert [(job.variant, job.seed) for job in jobs] == [("row", 200), ("short", 100), ("row", 100)]
    assert experiments.missing(rows, "long*", runs, tmp_path) == []


def test_a_line_has_mean_deviation_and_what_is_missing_to_the_goal() -> None:
    row = make_row(goal_return=5.0)
    found = {"row": {100: a_record(row, 100, 1.0, 3.0), 200: a_record(row, 200, 4.0, 4.0)}}
    text = results.tables(make_queue(row), found)
    assert "| Row | – | – | **3.0** ± 1.4 (2 seeds) | 5: missed by 2.0 | 1,024 | 2.0 |" in text
    assert "| Row | 2.0 4.0 | 100 200 | a machine |" in text
    text = results.tables(make_queue(row), {"row": {}})
    assert "| not measured | 5 |" in text


def test_a_row_is_compared_with_the_one_that_it_is_to_be_level_with() -> None:
    other = make_row(name="other", title="Other")
    row = make_row(level_with="other")
    ours, theirs = (
        {seed: a_record(r, seed, score) for seed, score in zip((100, 200), scores, strict=True)}
        for r, scores in ((row, (5.0, 7.0)), (other, (1.0, 3.0)))
    )
    text = results.tables(make_queue(row, other), {"row": ours, "other": theirs})
    assert "level with Other: +4.0 ± 1.4 (standard error)" in text  # errors of 1 each


def test_a_goal_in_training_is_reached_by_the_first_good_mean() -> None:
    row = make_row(goal_return=500.0, goal_episode=350, episodes_per_point=25)

    def reached(*means: float) -> int | str:
        points = {record.EPISODES: [25, 50, 75], record.PER_EPISODES: means}
        return results.first_reached(row, {"per_episodes": points})

    assert reached(20.0, 500.0, 499.0) == 50
    assert reached(20.0, 499.9, 499.0) == "never"


def test_a_band_is_drawn_on_the_points_of_the_shortest_run(tmp_path: Path) -> None:
    def run(steps: list[int], returns: list[float | None]) -> record.Record:
        return {"curve": {ENV_STEPS: steps, "episode_return_mean": returns}}

    runs = [run([1, 2, 3], [None, 10.0, 20.0]), run([1, 3, 5], [0.0, 30.0, 50.0])]
    points, curves = results.band(runs, ENV_STEPS, "episode_return_mean")
    assert points.tolist() == [2, 3]
    assert np.array_equal(curves, [[10.0, 20.0], [15.0, 30.0]])
    figure = Figure(
        name="f",
        title="F",
        lines={"a line": "row"},
        over=ENV_STEPS,
        panels={"episode_return_mean": "return"},
    )
    results.draw_figure(figure, {"row": dict(enumerate(runs))}, tmp_path / "f.png")
    assert (tmp_path / "f.png").stat().st_size > 1000
