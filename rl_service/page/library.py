"""The runs and tuning experiments of an output folder, for a page that is read and never writes."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from custom_models.text import brief, nearest
from rl_service.common.errors import SettingsError
from rl_service.common.metrics import ENV_STEPS, NUMERIC
from rl_service.config.settings import Settings
from rl_service.page.experiments import Experiments
from rl_service.page.folders import (
    MAX_YAML_BYTES,
    Kept,
    Locks,
    folder_below,
    folders_in,
    regular_file,
    started_at,
)
from rl_service.page.progress import EVALUATION, RETURN, Newest, ProgressColumns, read_newest
from rl_service.training.run import RUNS_FOLDER, Run
from rl_service.tuning.curves import Band, Curve, Floats, band_of, plain_labels

MAX_RUNS = 1000
"""Newest runs that are listed."""
MAX_CURVES = 50
"""Runs whose curves can be asked for together."""
MIN_POINTS, MAX_POINTS = 10, 10_000
"""Of a curve."""
X_AXES = {"steps": ENV_STEPS, "time": "time_total_s"}
"""Metrics that curves are drawn over, by the names that clients give them."""
_STARTS_S = 60.0
"""A run without any progress counts as running for this long."""
_CONFIG, _PROGRESS = "config.yaml", "progress.jsonl"


class RunLibrary:
    """What the folder `runs` in an output folder holds; writes nothing and locks nothing.

    It keeps what it has read, and reads a file again only if that has changed. So ask one library
    again and again rather than making new ones. Files that are damaged or have another origin are
    left out. All methods may be called from several threads.

    Args:
        output_dir: holds `runs`, which need not exist yet.
    """

    def __init__(self, output_dir: Path) -> None:
        self._root = output_dir.resolve() / RUNS_FOLDER
        self._lock = threading.Lock()
        self._settings = Kept(_read_settings, 2 * MAX_RUNS, MAX_YAML_BYTES)
        self._newest = Kept(_read_newest, 2 * MAX_RUNS)
        # A run of 2000 iterations takes 700 kB, so only those that are drawn are kept.
        self._columns = Kept(_read_columns, 2 * MAX_CURVES)
        self._experiments = Experiments(self._root)

    def runs(self) -> dict[str, Any]:
        """All runs, newest first, under `runs`."""
        with self._lock:
            locks, now = Locks(), time.time()
            found = (self._describe(path, locks, now) for path in self._run_folders())
            return {"runs": [run for run in found if run is not None]}

    def curves(self, run_ids: Sequence[str], metric: str, x: str, points: int) -> dict[str, Any]:
        """A metric of runs, those that differ in their seed only as one group.

        A group is drawn where all its runs have values, as `rl-service compare` does. Of more
        points than are asked for, the lowest and the highest of each stretch are kept.

        Args:
            run_ids: `experiment/run_id` of each, as in `runs`.
            metric: a key of `rl_service.common.metrics.METRICS` that is a number.
            x: a key of `X_AXES`.
            points: most points of a group.

        Returns:
            `groups`, and `left_out`: runs that have no such values or cannot be read.

        Raises:
            LookupError: naming a run that does not exist.
            SettingsError: if another argument is wrong.
        """
        _check(metric, x, points)
        ids = list(dict.fromkeys(run_ids))
        if not 1 <= len(ids) <= MAX_CURVES:
            raise SettingsError(f"{len(ids)} runs are asked for; ask for 1 to {MAX_CURVES}")
        with self._lock:
            folders = {run_id: self._run_folder(run_id) for run_id in ids}
            settings: dict[str, Settings] = {}
            curves: dict[str, Curve] = {}
            for run_id, folder in folders.items():
                found = self._settings.get(folder / _CONFIG)
                if found is None:
                    continue
                settings[run_id] = found
                columns = self._columns.get(folder / _PROGRESS)
                curve = None if columns is None else columns.curve(metric, X_AXES[x])
                if curve is not None:
                    curves[run_id] = curve
        groups = _groups(settings, curves, points)
        drawn = {run_id for group in groups for run_id in group["runs"]}
        left_out = [run_id for run_id in ids if run_id not in drawn]
        return {"metric": metric, "x": x, "groups": groups, "left_out": left_out}

    def experiments(self) -> dict[str, Any]:
        """All tuning experiments, newest first, under `experiments`; `experiment` says more."""
        with self._lock:
            locks, now = Locks(), time.time()
            folders = self._experiments.folders()[:MAX_RUNS]
            found = [self._experiments.describe(folder, locks, now) for folder in folders]
        listed = [_without(each, ("parameters", "trials")) for each in found if each is not None]
        return {"experiments": listed}

    def experiment(self, experiment_id: str) -> dict[str, Any]:
        """A tuning experiment with its parameters and trials.

        Raises:
            LookupError: if it does not exist or cannot be read.
        """
        folder = folder_below(self._root, experiment_id, depth=1)
        with self._lock:
            found = folder and self._experiments.describe(folder, Locks(), time.time())
        if not found:
            raise LookupError(f"no tuning experiment '{brief(experiment_id, 100)}' can be read")
        return found

    def _run_folders(self) -> list[Path]:
        """Of the newest runs, newest first."""
        found = [
            folder
            for experiment in folders_in(self._root)
            for folder in folders_in(experiment)
            if regular_file(folder / _CONFIG) is not None
        ]
        return sorted(found, key=started_at, reverse=True)[:MAX_RUNS]

    def _run_folder(self, run_id: str) -> Path:
        folder = folder_below(self._root, run_id, depth=2)
        if folder is None or regular_file(folder / _CONFIG) is None:
            raise LookupError(f"no run '{brief(run_id, 100)}'")
        return folder

    def _describe(self, folder: Path, locks: Locks, now: float) -> dict[str, Any] | None:
        """A run; None if its settings or its progress cannot be read."""
        settings = self._settings.get(folder / _CONFIG)
        progress = regular_file(folder / _PROGRESS)
        newest = self._newest.get(folder / _PROGRESS) if progress else Newest({}, {})
        if settings is None or newest is None:
            return None
        started = started_at(folder)
        updated = started if progress is None else progress.st_mtime
        is_at_work = locks.holds(folder, updated, now)
        # Ray starts before the lock is taken.
        is_at_work |= progress is None and now - started < _STARTS_S
        last, known = newest
        return {
            "id": f"{folder.parent.name}/{folder.name}",
            "env": settings.env.id,
            "model": settings.model.name,
            "algorithm": settings.algorithm.name,
            "seed": settings.seed,
            "started": started,
            "updated": updated,
            "state": _state(settings, last, is_at_work),
            "iterations": int(last.get("training_iteration", 0)),
            "env_steps": int(last.get(ENV_STEPS, 0)),
            "return": known.get(RETURN),
            "evaluation": known.get(EVALUATION),
            "env_steps_per_s": last.get("env_steps_per_s"),
            "workers": int(last.get("num_env_runners", settings.resources.num_env_runners)),
            "stop": {
                "iterations": settings.stop.iterations,
                "env_steps": settings.stop.env_steps,
                "episode_return": settings.stop.episode_return_mean,
            },
        }


def _read_settings(path: Path, before: Settings | None) -> Settings:
    return Run.open(path.parent).settings


def _read_newest(path: Path, before: Newest | None) -> Newest:
    return read_newest(path)


def _read_columns(path: Path, before: ProgressColumns | None) -> ProgressColumns:
    columns = before or ProgressColumns()
    columns.update(path)
    return columns


def _state(settings: Settings, last: Mapping[str, float], is_at_work: bool) -> str:
    """`running`, or what a resume would find: nothing left to do, or something.

    A run whose last evaluation is missing is not finished: a resume makes up for it.
    """
    if is_at_work:
        return "running"
    is_done = settings.stop.is_met(
        iteration=last.get("training_iteration", 0),
        env_steps=last.get(ENV_STEPS, 0),
        time_s=last.get("time_total_s", 0.0),
        return_mean=last.get(RETURN),
    )
    owes_evaluation = settings.evaluation.interval > 0 and EVALUATION not in last
    return "finished" if is_done and not owes_evaluation else "stopped"


def _check(metric: str, x: str, points: int) -> None:
    problems = []
    for name, value, known, usual in (
        ("metric", metric, NUMERIC, (RETURN, EVALUATION)),
        ("x", x, X_AXES.keys(), tuple(X_AXES)),
    ):
        if value not in known:
            shown = brief(value, 60)
            near = nearest(shown, known)
            hint = f"did you mean {near}?" if near else f"usual ones: {', '.join(usual)}"
            problems.append(f"{name} {shown} is unknown; {hint}")
    if not MIN_POINTS <= points <= MAX_POINTS:
        problems.append(f"points={points} is not from {MIN_POINTS} to {MAX_POINTS}")
    if problems:
        raise SettingsError(problems)


def _groups(
    settings: Mapping[str, Settings], curves: Mapping[str, Curve], points: int
) -> list[dict[str, Any]]:
    """The groups in the order of their first runs, without those whose runs share no x.

    A run without a curve has a say in the labels all the same, so that they stay what they are
    from one metric to the next.
    """
    labels = plain_labels(settings)
    members: dict[str, list[str]] = {}
    for run_id in curves:
        members.setdefault(labels[run_id], []).append(run_id)
    found = []
    for label, runs in members.items():
        band = band_of([curves[run] for run in runs])
        if band is None:
            continue
        at = _kept_points(band, points)
        group = {"label": label, "runs": runs, "seeds": [settings[run].seed for run in runs]}
        lines = {"x": band.env_steps, "mean": band.mean, "low": band.low, "high": band.high}
        found.append(group | {name: _finite(line[at]) for name, line in lines.items()})
    return found


def _kept_points(band: Band, points: int) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Indices of the band's points to keep, increasing, (N,) with N <= points.

    The first and the last; between them, of each of many stretches of equally many points, where
    the band is lowest and where it is highest. So the extremes of any curve are seen.
    """
    number = len(band.env_steps)
    if number <= points:
        return np.arange(number)
    borders = np.linspace(0, number, (points - 2) // 2 + 1).astype(int)
    kept = {0, number - 1}
    for start, end in pairwise(borders.tolist()):
        kept.add(start + int(band.low[start:end].argmin()))
        kept.add(start + int(band.high[start:end].argmax()))
    return np.array(sorted(kept))


def _finite(values: Floats) -> list[float | None]:
    """Plain numbers; a mean of the largest ones may be infinite, which JSON does not know."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def _without(content: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key not in keys}
