"""A tuning experiment as a page reads it, while Ray Tune runs it and afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rl_service.page.library import RunLibrary
from rl_service.tuning.trial_view import TrialView, ranked
from tests.support.tuning import Watcher, run_plan, small_plan

pytestmark = pytest.mark.usefixtures("local_ray")


class Reader(Watcher):
    """Reads the experiment whenever something happens to a trial."""

    def __init__(self, library: RunLibrary) -> None:
        super().__init__()
        self.library = library
        self.found: list[dict[str, Any]] = []

    def on_trials(self, trials: Sequence[TrialView]) -> None:
        super().on_trials(trials)
        [listed] = self.library.experiments()["experiments"]
        self.found.append(self.library.experiment(listed["id"]))


def test_an_experiment_is_read_while_it_runs_and_afterwards(tmp_path: Path) -> None:
    plan = small_plan(
        tmp_path,
        settings={
            "env": {"id": "tests.support.tuning:NaNReturns", "max_episode_steps": None},
            "stop": {"iterations": 2},
        },
        search_space={
            "env.kwargs": {"choice": [{"broken": True}, {"broken": False}]},
            "algorithm.gamma": {"one_minus_loguniform": [0.9, 0.999]},
            "algorithm.minibatch_size": {"power_of_two": [16, 32]},
        },
        points_to_evaluate=[{"env.kwargs": {"broken": broken}} for broken in (True, False)],
    )
    reader = Reader(RunLibrary(tmp_path))
    result = run_plan(plan, str(tmp_path / "runs"), reader)
    assert {each["state"] for each in reader.found} == {"running"}
    assert reader.found[-1]["num_trials"] > 0

    found = reader.library.experiment(Path(result.experiment).name)
    assert (found["name"], found["state"], found["num_trials"]) == ("small", "finished", 2)
    assert found["parameters"] == [
        {"name": "algorithm.gamma", "log": False},
        {"name": "algorithm.minibatch_size", "log": True},
        {"name": "env.kwargs", "log": False},
    ]
    # The same as Tune's own objects say, whose errors and settings were unpickled.
    trials = {trial.trial_id: trial for trial in reader.trials}
    assert {trial["id"] for trial in found["trials"]} == set(trials)
    for trial in found["trials"]:
        expected = trials[trial["id"]]
        assert (trial["state"], trial["score"]) == (expected.status, expected.best_score)
        assert (trial["env_steps"], trial["error"]) == (expected.env_steps, expected.error)
        broken = expected.values["env.kwargs"]["broken"]
        assert trial["values"] == expected.values | {
            "env.kwargs": f'{{"broken": {str(broken).lower()}}}'
        }
    assert found["best"]["id"] == ranked(reader.trials)[0].trial_id == result.best_trial
    assert found["metric"] == "best_score"

    # As a kill leaves it: no report, trials that have not ended, half a snapshot beside its copy.
    folder = Path(result.experiment)
    (folder / "report" / "results.csv").unlink()
    [state] = folder.glob("experiment_state-*.json")
    saved = state.read_text(encoding="utf-8").replace("TERMINATED", "RUNNING")
    (folder / "snapshot").mkdir(exist_ok=True)
    (folder / "snapshot" / state.name).write_text(saved, encoding="utf-8")
    state.write_text(saved[:-20], encoding="utf-8")
    killed = RunLibrary(tmp_path).experiment(folder.name)
    assert killed["state"] == "stopped"
    assert sorted(trial["state"] for trial in killed["trials"]) == ["failed", "paused"]
