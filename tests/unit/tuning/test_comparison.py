"""What a comparison writes: a table with known numbers, and figures that are pictures."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from rl_service.cli.app import main
from rl_service.common.errors import OutputError, SettingsError
from rl_service.tuning.comparison import compare
from tests.unit.tuning.conftest import WriteRun

ROOT = Path(__file__).parents[3]


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_the_table_has_mean_and_deviation_over_seeds(write_run: WriteRun) -> None:
    runs = [
        write_run(None, 10.0, 4.0, seed=1, further={"evaluation/episode_return_mean": 20.0}),
        write_run(2.0, 8.0, seed=2, further={"evaluation/episode_return_mean": 26.0}),
    ]
    other = write_run(1000.0, seed=5)
    made = compare([*(f"a|b={run.path}" for run in runs), f"c={other.path}"], Path("out"))
    with (made.folder / "results.csv").open() as file:
        first, second = csv.DictReader(file)
    assert first == {
        **{"group": "a|b", "runs": "2", "seeds": "1 2"},
        **{"env_steps_min": "200", "env_steps_max": "300"},
        **{"final_return_mean": "6.0", "final_return_std": str(8**0.5)},  # of 4 and 8
        **{"best_return_mean": "9.0", "best_return_std": str(2**0.5)},  # of 10 and 8
        **{"final_evaluation_mean": "23.0", "final_evaluation_std": str(18**0.5)},
        **{"best_evaluation_mean": "23.0", "best_evaluation_std": str(18**0.5)},
    }
    assert (second["final_return_mean"], second["final_return_std"]) == ("1000.0", "")
    assert second["final_evaluation_mean"] == ""
    assert (made.folder / "results.md").read_text().splitlines() == [
        "| group | runs | seeds | env steps | final return | best return | final evaluation "
        "| best evaluation |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
        r"| a\|b | 2 | 1, 2 | 200–300 | 6.0 ± 2.8 | 9.0 ± 1.4 | 23.0 ± 4.2 | 23.0 ± 4.2 |",
        "| c | 1 | 5 | 100 | 1,000.0 | 1,000.0 | – | – |",
        "",
        f"- a|b: `{runs[0].run_id}`, `{runs[1].run_id}`",
        f"- c: `{other.run_id}`",
    ]


def test_a_figure_is_drawn_for_each_metric_that_a_run_has(write_run: WriteRun) -> None:
    whole = write_run(1.0, 3.0, further={"entropy": 0.5})
    part = write_run(2.0, 2.0)
    made = compare([f"_a $x={whole.path}", f"b={part.path}"], Path("out"))
    assert names(made.folder) == [
        *("entropy.png", "episode_return_mean.png", "results.csv", "results.md")
    ]
    assert [path.name for path in made.figures] == ["episode_return_mean.png", "entropy.png"]
    assert made.notes == ["entropy.png leaves out 'b': 1 of its 1 runs have no values"]
    for path in made.figures:
        picture = imread(path)
        assert picture.shape[:2] == (528 if path.stem.startswith("ep") else 504, 840)
        assert len(np.unique(picture.reshape(-1, picture.shape[-1]), axis=0)) > 10


def test_metrics_can_be_chosen(write_run: WriteRun) -> None:
    run = write_run(1.0, further={"evaluation/episode_len_mean": 3.0, "entropy": None})
    made = compare([run.run_id], Path("out"), metrics=["evaluation/episode_len_mean"])
    assert [path.name for path in made.figures] == ["evaluation_episode_len_mean.png"]
    with pytest.raises(SettingsError, match=r"--metric entropi is unknown; did you mean entropy\?"):
        compare([run.run_id], Path("other"), metrics=["entropi"])
    with pytest.raises(SettingsError, match="--metric entropy: no run has values of it; they have"):
        compare([run.run_id], Path("other"), metrics=["entropy"])
    assert not Path("other").exists()


def test_runs_that_share_no_env_steps_are_said_and_still_in_the_table(write_run: WriteRun) -> None:
    early, late = write_run(1.0, None, seed=1), write_run(None, 2.0, seed=2)
    made = compare([early.run_id, late.run_id], Path("out"))
    assert made.notes == [
        "episode_return_mean.png leaves out 'mlp ppo CartPole-v1': its runs share no env steps"
    ]
    assert names(made.folder) == ["results.csv", "results.md"]


def test_an_earlier_comparison_is_replaced_as_a_whole(write_run: WriteRun) -> None:
    compare([write_run(1.0, further={"entropy": 1.0}).run_id], Path("out"))
    compare([write_run(1.0).run_id], Path("out"))
    assert names(Path("out")) == ["episode_return_mean.png", "results.csv", "results.md"]


def test_a_folder_with_anything_else_in_it_stays_as_it_is(write_run: WriteRun) -> None:
    run = write_run(1.0)
    Path("out").mkdir()
    Path("out", "mine.md").write_text("mine")
    with pytest.raises(OutputError, match=r"holds mine\.md, which no comparison wrote"):
        compare([run.run_id], Path("out"))
    with pytest.raises(OutputError, match="is the current folder"):
        compare([run.run_id], Path())
    with pytest.raises(OutputError, match=r"mine\.md: not a directory; choose another"):
        compare([run.run_id], Path("out", "mine.md"))
    assert names(Path("out")) == ["mine.md"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none", "-o", "out"], "no run 'none'"),
        (["RUN", "-o", "/dev/null/x"], "cannot write /dev/null/x: not a directory"),
        (["RUN"], "Missing option '--output-dir'"),
        (["-o", "out"], "Missing argument 'RUN'"),
        (["RUN", "-o", "out", "--metric", "x"], "--metric x is unknown; usual ones: episode_ret"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    arguments: list[str], said: str, write_run: WriteRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = write_run(1.0).run_id
    assert main(["compare", *(run_id if each == "RUN" else each for each in arguments)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and said in line
    assert names(Path()) == ["runs"]


def test_the_command_as_a_user_runs_it(write_run: WriteRun) -> None:
    runs = [write_run(1.0, 3.0, seed=1), write_run(3.0, 5.0, seed=2)]
    arguments = [*(run.run_id for run in runs), "-o", "made/here", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "rl_service.cli", "compare", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "4.0 ± 1.4" in done.stdout
    assert "figures and tables: made/here" in done.stdout
    summary = json.loads(done.stdout.splitlines()[-1])
    [group] = summary["groups"]
    assert (group["group"], group["seeds"]) == ("mlp ppo CartPole-v1", [1, 2])
    assert group["runs"] == [str(run.path) for run in runs]
    assert (group["env_steps_min"], group["final_return_mean"]) == (200, 4.0)
    assert summary["figures"] == [str(Path.cwd() / "made/here/episode_return_mean.png")]
    assert Path(summary["figures"][0]).is_file()
