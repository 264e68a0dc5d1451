"""Tuning experiments as they lie on disk, running or not.

Ray Tune's snapshot is read as the JSON that it is, and nothing in it is unpickled: an experiment
that somebody else sent is data, not code.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from custom_models.text import brief
from rl_service.common.metrics import ENV_STEPS
from rl_service.config.yaml_text import read_yaml_mapping
from rl_service.page.folders import (
    MAX_YAML_BYTES,
    Kept,
    Locks,
    folder_below,
    folders_in,
    regular_file,
    started_at,
)
from rl_service.tuning.domains import Domain
from rl_service.tuning.plan import BEST_SCORE, SCORE
from rl_service.tuning.storage import BACKUP_FOLDER, PLAN_FILE, STATE
from rl_service.tuning.trial_view import (
    TrialStatus,
    TrialView,
    ranked,
    trial_folder,
    trial_status,
)

REPORT = Path("report", "results.csv")
"""Written when an experiment has come to its end."""
_KEPT_EXPERIMENTS = 1000
_KEPT_ERRORS = 10_000
_MAX_ERROR_CHARACTERS = 1000
_ERROR_FILE = "error.txt"
_EXCEPTION = re.compile(r"^[\w.]*(Error|Exception): ")
_TRIAL_ID = re.compile(r"\w+")


class _Plan(NamedTuple):
    name: str | None
    domains: dict[str, Domain]


class _SavedTrial(NamedTuple):
    """A trial of a snapshot; its settings are still coordinates."""

    trial_id: str
    status: TrialStatus
    config: Mapping[str, Any]
    result: Mapping[str, Any]


class Experiments:
    """The tuning experiments in a folder.

    Args:
        folder: holds theirs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._plans = Kept(_read_plan, _KEPT_EXPERIMENTS, MAX_YAML_BYTES)
        self._trials = Kept(_read_trials, _KEPT_EXPERIMENTS)
        self._errors = Kept(_read_error, _KEPT_ERRORS)

    def folders(self) -> list[Path]:
        """Those of experiments, newest first."""
        found = [p for p in folders_in(self._folder) if regular_file(p / PLAN_FILE) is not None]
        return sorted(found, key=started_at, reverse=True)

    def describe(self, folder: Path, locks: Locks, now: float) -> dict[str, Any] | None:
        """An experiment with its parameters and trials; None if its files are damaged.

        Args:
            folder: of the experiment.
            locks: that are held now.
            now: Unix seconds.
        """
        plan = self._plans.get(folder / PLAN_FILE)
        if plan is None:
            return None
        state = _newest_state(folder)
        info = None if state is None else regular_file(state)
        updated = started_at(folder) if info is None else info.st_mtime
        is_running = locks.holds(folder, updated, now)
        views = [self._view(folder, plan, t, is_running) for t in self._saved_trials(state)]
        best = next((view for view in ranked(views) if view.best_score is not None), None)
        return {
            "id": folder.name,
            "name": plan.name or folder.name,
            "started": started_at(folder),
            "state": "running" if is_running else _state(folder, views),
            "num_trials": len(views),
            "metric": BEST_SCORE,
            "best": None if best is None or best.status == "failed" else _as_json(best),
            "parameters": [
                {"name": key, "log": domain.kind in ("loguniform", "power_of_two")}
                for key, domain in plan.domains.items()
            ],
            "trials": [_as_json(view) for view in views],
        }

    def _saved_trials(self, state: Path | None) -> list[_SavedTrial]:
        """The trials of a snapshot, or of its copy if it is only half there."""
        if state is None:
            return []
        found = self._trials.get(state)
        copies = folder_below(state.parent, BACKUP_FOLDER, depth=1)
        if found is None and copies is not None:
            found = self._trials.get(copies / state.name)
        return found or []

    def _view(self, folder: Path, plan: _Plan, saved: _SavedTrial, is_running: bool) -> TrialView:
        status = saved.status
        if status == "running" and not is_running:  # it continues with the experiment
            status = "paused" if saved.result else "waiting"
        error = None
        own = folder_below(folder, trial_folder(saved.trial_id), depth=1)
        if status == "failed" and own is not None:
            error = self._errors.get(own / _ERROR_FILE)
        score, best, time_s = (
            _number(saved.result.get(key)) for key in (SCORE, BEST_SCORE, "time_total_s")
        )
        steps = _number(saved.result.get(ENV_STEPS))
        return TrialView(
            trial_id=saved.trial_id,
            status=status,
            values=_values(plan.domains, saved.config),
            env_steps=None if steps is None else int(steps),
            score=score,
            best_score=best,
            env_steps_per_s=None,
            time_s=time_s,
            error=error,
        )


def _newest_state(folder: Path) -> Path | None:
    """The newest snapshot's file with the trials; their names end with the time."""
    try:
        found = sorted(folder.glob(f"{STATE}*.json"))
    except OSError:
        return None
    return next((path for path in reversed(found) if regular_file(path) is not None), None)


def _state(folder: Path, views: list[TrialView]) -> str:
    """Of an experiment on which no process is at work.

    One that was resumed for more trials after its end has the report of before.
    """
    goes_on = any(view.status in ("waiting", "running", "paused") for view in views)
    return "stopped" if goes_on or regular_file(folder / REPORT) is None else "finished"


def _read_plan(path: Path, before: _Plan | None) -> _Plan:
    content = read_yaml_mapping(path)
    domains = {k: Domain.model_validate(v) for k, v in content.get("search_space", {}).items()}
    name = content.get("name")
    return _Plan(None if name is None else str(name), domains)


def _read_trials(path: Path, before: list[_SavedTrial] | None) -> list[_SavedTrial]:
    try:
        state = json.loads(path.read_bytes())
    except ValueError:
        if before is None:
            raise
        return before  # Tune is writing it: it writes over its only one
    return [_saved_trial(json.loads(trial), json.loads(ran)) for trial, ran in state["trial_data"]]


def _saved_trial(trial: Mapping[str, Any], ran: Mapping[str, Any]) -> _SavedTrial:
    if not _TRIAL_ID.fullmatch(trial["trial_id"]):  # it is part of a path
        raise ValueError("a trial's id has other characters than those of Tune")
    last = dict(ran["last_result"])
    result = last if BEST_SCORE in last else {}  # a trial that fails at once has its id there
    status = trial_status(trial["status"], result)
    return _SavedTrial(trial["trial_id"], status, dict(trial["config"]), result)


def _read_error(path: Path, before: str | None) -> str | None:
    """The exception's own words, which end a trial's error file."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    last = next((line for line in reversed(lines) if line.strip()), "its process died")
    return brief(_EXCEPTION.sub("", last), _MAX_ERROR_CHARACTERS)


def _values(domains: Mapping[str, Domain], config: Mapping[str, Any]) -> dict[str, Any]:
    """What the settings were drawn to; a coordinate that the plan does not know is left out."""
    values = {}
    for key, domain in domains.items():
        try:
            values[key] = domain.to_value(config[key])
        except (KeyError, TypeError, ValueError, OverflowError, StopIteration):
            continue
    return values


def _as_json(view: TrialView) -> dict[str, Any]:
    return {
        "id": view.trial_id,
        "state": view.status,
        "score": view.best_score,
        "values": {key: _plain(value) for key, value in view.values.items()},
        "env_steps": view.env_steps,
        "error": view.error,
    }


def _plain(value: Any) -> Any:
    """A number, a text or a truth value; lists and the like become their text."""
    is_plain = isinstance(value, str | bool) or _number(value) is not None
    return value if is_plain else json.dumps(value, default=str)


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) <= sys.float_info.max else None
