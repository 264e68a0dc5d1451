"""An output folder as a page reads it while trainings write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from rl_service.common.errors import SettingsError
from rl_service.config.settings import StopSettings
from rl_service.page.folders import Kept
from rl_service.page.library import RunLibrary
from rl_service.page.progress import EVALUATION, RETURN
from rl_service.training.run import Run
from tests.unit.page.conftest import WriteRun, curve, row, run_id


def state_of(library: RunLibrary) -> str:
    [run] = library.runs()["runs"]
    return str(run["state"])


@contextmanager
def held_by_another_process(run: Run) -> Iterator[None]:
    """Another process works on the run."""
    code = (
        "import fcntl, os, sys\n"
        "fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(run.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield


def bytes_read() -> int:
    """By this thread, whatever from."""
    words = Path("/proc/thread-self/io").read_text(encoding="ascii").split()
    return int(words[words.index("rchar:") + 1])


def test_an_empty_folder_has_nothing(library: RunLibrary) -> None:
    assert library.runs() == {"runs": []}
    assert library.experiments() == {"experiments": []}


def test_a_run_is_described(library: RunLibrary, write_run: WriteRun) -> None:
    run = write_run(None, 7.5, seed=9)
    run.complete_progress({EVALUATION: 8.0})
    run.append_progress(row(3, None, env_steps_per_s=50.0, num_env_runners=4))
    [found] = library.runs()["runs"]
    progress = run.path / "progress.jsonl"
    assert found.pop("started") == pytest.approx(progress.stat().st_mtime, abs=60)
    assert found == {
        "id": run_id(run),
        "env": "CartPole-v1",
        "model": "mlp",
        "algorithm": "ppo",
        "seed": 9,
        "updated": progress.stat().st_mtime,
        "state": "stopped",
        "iterations": 3,
        "env_steps": 300,
        "return": 7.5,
        "evaluation": 8.0,
        "env_steps_per_s": 50.0,
        "workers": 4,
        "stop": {"iterations": 100, "env_steps": None, "episode_return": None},
    }


def test_the_newest_run_is_first(library: RunLibrary, write_run: WriteRun) -> None:
    for day in (2, 3, 1):
        run = write_run(1.0)
        run.path.rename(run.path.with_name(f"2026010{day}-000000-aaaaaa"))
    found = [run["id"] for run in library.runs()["runs"]]
    assert found == [f"test/2026010{day}-000000-aaaaaa" for day in (3, 2, 1)]


def test_a_run_is_finished_when_a_resume_would_find_nothing_to_do(
    library: RunLibrary, write_run: WriteRun
) -> None:
    run = write_run(1.0, iterations=2)
    assert state_of(library) == "stopped"
    run.append_progress(row(2, 1.0))
    assert state_of(library) == "stopped"  # the last evaluation is still to be made
    run.complete_progress({EVALUATION: 1.0})
    assert state_of(library) == "finished"
    run.with_settings(run.settings.model_copy(update={"stop": StopSettings(iterations=3)}))
    assert state_of(library) == "stopped"


def test_a_run_is_running_while_another_process_holds_its_lock(
    library: RunLibrary, write_run: WriteRun
) -> None:
    run = write_run(1.0)
    with held_by_another_process(run):
        assert state_of(library) == "running"
    assert state_of(library) == "stopped"
    with run.lock():  # reading has not taken it
        assert state_of(library) == "running"


def test_a_run_that_has_just_been_made_is_running(
    library: RunLibrary, write_run: WriteRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(iterations=1)
    assert state_of(library) == "running"
    later = run.path.with_name(f"20200101-000000-{run.run_id[-6:]}")
    run.path.rename(later)
    assert state_of(library) == "stopped"


def test_what_a_training_does_to_its_progress_is_followed(
    library: RunLibrary, write_run: WriteRun
) -> None:
    run = write_run(1.0, 2.0, 3.0)
    assert curve(library, run) == ([100, 200, 300], [1, 2, 3])
    run.complete_progress({EVALUATION: 9.0})
    assert curve(library, run, EVALUATION) == ([300], [9])
    with (run.path / "progress.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row(4, 4.0))[:-5])
    assert curve(library, run) == ([100, 200, 300], [1, 2, 3])
    run.append_progress(row(4, 4.0))
    assert curve(library, run) == ([100, 200, 300, 400], [1, 2, 3, 4])
    run.rewind_progress(3)  # one row less
    assert curve(library, run) == ([100, 200, 300], [1, 2, 3])
    run.append_progress(row(4, 5.0))
    run.append_progress(row(5, 6.0))
    assert curve(library, run) == ([100, 200, 300, 400, 500], [1, 2, 3, 5, 6])
    run.rewind_progress(1)
    for i in range(2, 7):  # as long as before and longer, with other numbers
        run.append_progress(row(i, 10.0 * i))
    assert curve(library, run) == ([100, 200, 300, 400, 500, 600], [1, 20, 30, 40, 50, 60])
    fresh = RunLibrary(run.output_dir)
    assert curve(fresh, run) == curve(library, run)
    assert fresh.runs() == library.runs()


def test_progress_is_read_once(library: RunLibrary, write_run: WriteRun) -> None:
    runs = [write_run(seed=seed) for seed in range(50)]
    rows = (row(i, float(i)) | ({EVALUATION: 1.0} if i % 5 == 0 else {}) for i in range(1, 2001))
    text = "".join(json.dumps(each) + "\n" for each in rows)
    for run in runs:
        (run.path / "progress.jsonl").write_text(text, encoding="utf-8")
    ids = [run_id(run) for run in runs]

    def ask() -> int:
        """Bytes that are read for the list and all curves."""
        before = bytes_read()
        library.runs()
        [group] = library.curves(ids, RETURN, "steps", 400)["groups"]
        assert len(group["runs"]) == 50
        return bytes_read() - before

    ends = 50 * 80_000  # what the list reads of each file, and its settings
    assert 50 * len(text) < ask() < 50 * len(text) + ends
    assert ask() < 20_000  # which processes hold locks
    runs[0].append_progress(row(2001, 1.0))
    runs[1].complete_progress({EVALUATION: 1.0})
    assert ask() < 200_000 < len(text)  # of two files their ends


def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    read: list[str] = []
    kept = Kept(lambda path, before: read.append(path.name), max_files=2)
    for name in ("a", "b", "a", "c", "a", "b"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1, 1))
        kept.get(tmp_path / name)
    assert read == ["a", "b", "c", "b"]


def test_seeds_are_one_band_and_other_settings_another(
    library: RunLibrary, write_run: WriteRun
) -> None:
    first, second = write_run(0.0, 10.0, 20.0, seed=1), write_run(4.0, 6.0, seed=2)
    other = write_run(5.0, actor_lr=1e-3)
    found = library.curves([run_id(r) for r in (first, other, second)], RETURN, "steps", 400)
    assert found == {
        "metric": RETURN,
        "x": "steps",
        "groups": [
            {
                "label": "mlp ppo CartPole-v1, algorithm.actor_lr=0.0003",
                "runs": [run_id(first), run_id(second)],
                "seeds": [1, 2],
                "x": [100, 200],
                "mean": [2, 8],
                "low": [0, 6],
                "high": [4, 10],
            },
            {
                "label": "mlp ppo CartPole-v1, algorithm.actor_lr=0.001",
                "runs": [run_id(other)],
                "seeds": [0],
                "x": [100],
                "mean": [5],
                "low": [5],
                "high": [5],
            },
        ],
        "left_out": [],
    }


def test_time_that_does_not_grow_is_no_point(library: RunLibrary, write_run: WriteRun) -> None:
    run = write_run()
    for i, time_s in enumerate((1.0, 3.0, 2.0, 3.0, 4.0), start=1):
        run.append_progress(row(i, float(i)) | {"time_total_s": time_s})
    [group] = library.curves([run_id(run)], RETURN, "time", 400)["groups"]
    assert (group["x"], group["mean"]) == ([1, 3, 4], [1, 2, 5])


@pytest.mark.parametrize("points", [10, 11, 100])
def test_peaks_survive_fewer_points(library: RunLibrary, write_run: WriteRun, points: int) -> None:
    run = write_run()
    values = [0.0] * 1000
    values[333], values[777] = 50.0, -50.0
    text = "".join(json.dumps(row(i, value)) + "\n" for i, value in enumerate(values, start=1))
    (run.path / "progress.jsonl").write_text(text, encoding="utf-8")
    [group] = library.curves([run_id(run)], RETURN, "steps", points)["groups"]
    assert len(group["x"]) <= points
    assert (group["x"][0], group["x"][-1]) == (100, 100_000)
    assert group["mean"][group["x"].index(33_400)] == 50
    assert group["mean"][group["x"].index(77_800)] == -50


def test_runs_without_values_are_left_out(library: RunLibrary, write_run: WriteRun) -> None:
    run, empty, null = write_run(1.0), write_run(seed=1), write_run(None, seed=2)
    early, late = write_run(1.0, actor_lr=1e-3, seed=3), write_run(actor_lr=1e-3, seed=4)
    late.append_progress(row(5, 1.0))
    runs = (run, empty, null, early, late)
    found = library.curves([run_id(each) for each in runs], RETURN, "steps", 400)
    assert [group["runs"] for group in found["groups"]] == [[run_id(run)]]
    assert found["left_out"] == [run_id(each) for each in (empty, null, early, late)]


def test_wrong_arguments_are_named(library: RunLibrary) -> None:
    with pytest.raises(SettingsError) as caught:
        library.curves(["a/b"], "episode_return_men", "step", 1)
    assert caught.value.problems == [
        "metric episode_return_men is unknown; did you mean episode_return_mean?",
        "x step is unknown; did you mean steps?",
        "points=1 is not from 10 to 10000",
    ]
    for number in (0, 51):
        ids = [f"a/{i}" for i in range(number)]
        with pytest.raises(SettingsError, match=f"{number} runs are asked for; ask for 1 to 50"):
            library.curves(ids, RETURN, "steps", 400)


def test_an_experiment_before_its_first_snapshot(library: RunLibrary, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "search_20260101-120000-abcd"
    folder.mkdir(parents=True)
    space = {"algorithm.actor_lr": {"loguniform": [1e-4, 1e-2]}}
    plan = yaml.safe_dump({"name": "search", "search_space": space})
    (folder / "tuning.yaml").write_text(plan)
    [found] = library.experiments()["experiments"]
    assert (found["name"], found["state"], found["num_trials"]) == ("search", "stopped", 0)
    assert found["best"] is None
    assert library.experiment(folder.name)["parameters"] == [
        {"name": "algorithm.actor_lr", "log": True}
    ]


def test_without_a_list_of_locks_a_file_that_is_written_is_at_work(
    library: RunLibrary, write_run: WriteRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("rl_service.page.folders._LOCKS", tmp_path / "none")
    run = write_run(1.0)
    assert state_of(library) == "running"
    os.utime(run.path / "progress.jsonl", (1e9, 1e9))
    assert state_of(library) == "stopped"
